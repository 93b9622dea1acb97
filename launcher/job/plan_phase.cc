// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/plan_phase.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "launcher/job/plan_checks.h"
#include "launcher/job/seats.h"
#include "launcher/plan/free.h"

namespace dtrain::job {

void PlanPhase::Refuse(const absl::Status& status) {
  stop_.Stop({.kind = Verdict::Kind::kRefused,
              .exit_code = kExitUsage,
              .message = std::string(status.message()),
              .rank = {},
              .signal = 0});
}

void PlanPhase::Begin() {
  if (!Place()) return;
  if (cluster_.options().survey) return probe_.Begin();
  reserve_.StopWaiting();
  if (!CheckNodes()) return;
  for (std::string& warning : WarningsOf(cluster_.views())) out_.Warn(std::move(warning));
  for (const std::string& warning : cluster_.plan().warnings) out_.Warn(warning);
  for (std::string& warning :
       ShellWarnings(cluster_.options(), cluster_.plan(), cluster_.views())) {
    out_.Warn(std::move(warning));
  }
  if (!CheckOptions()) return;
  Launchers launchers = FindLaunchers(cluster_.options(), cluster_.plan());
  for (std::string& warning : launchers.warnings) out_.Warn(std::move(warning));
  if (cluster_.options().dry_run) {
    out_.Add(PlanReady{});
    return stop_.Succeed();
  }
  // Of those that have no rank now one may get one, if the plan is made again.
  if (cluster_.options().wait == Duration::zero()) LetGoOfIdle(cluster_, stop_);
  reserve_.Begin();
  probe_.Begin();
}

absl::Status PlanPhase::OnInventory(const Event& event) {
  if (absl::Status status = reserve_.OnInventory(OfAgent(event)); !status.ok()) return status;
  if (reserve_.all_looked() && !early_faults_.any()) Begin();
  return absl::OkStatus();
}

// On what other jobs leave. When that does not suffice and all would, it is a matter of time. A
// survey is of hosts of which some may have runs of the same job.
bool PlanPhase::Place() {
  std::vector<v1::Inventory> all, free;
  for (const NodeView& view : cluster_.views()) {
    all.push_back(view.inventory);
    free.push_back(cluster_.options().survey
                       ? view.inventory
                       : plan::FreeOf(view.inventory, cluster_.options().plan));
  }
  absl::StatusOr<plan::Plan> placed = PlanOn(free);
  if (placed.ok()) {
    if (absl::Status cores = plan::CheckFreeCores(*placed, all, free); !cores.ok()) placed = cores;
  }
  if (!placed.ok()) {
    const std::string held = plan::FormatHeld(cluster_.hosts(), all);
    if (!held.empty() && PlanOn(all).ok()) {
      reserve_.Busy(absl::StrCat(placed.status().message(), "\n  held by other jobs: ", held));
    } else {
      Refuse(placed.status());
    }
    return false;
  }
  cluster_.SetPlan(*std::move(placed));
  ranks_.Assign();
  return true;
}

absl::StatusOr<plan::Plan> PlanPhase::PlanOn(const std::vector<v1::Inventory>& inventories) const {
  const JobOptions& options = cluster_.options();
  absl::StatusOr<plan::Plan> planned =
      options.min_nodes > 0 || !options.seats.empty()
          ? PlaceOnPresent(inventories)
          : plan::Place(cluster_.hosts(), inventories, options.plan);
  if (!planned.ok()) return planned;
  std::vector<v1::Inventory> used;
  for (const plan::PlannedNode& node : planned->nodes) {
    used.push_back(inventories[node.node.value()]);
  }
  if (absl::Status pinned = plan::Pin(*planned, used, options.plan); !pinned.ok()) return pinned;
  if (options.check_plan) {
    if (absl::Status checked = options.check_plan(*planned); !checked.ok()) return checked;
  }
  return planned;
}

// --min-nodes: those that have not joined by now are left out. A restart leaves ranks where they
// were.
absl::StatusOr<plan::Plan> PlanPhase::PlaceOnPresent(
    const std::vector<v1::Inventory>& inventories) const {
  hosts::HostList there = cluster_.hosts();
  there.entries.clear();
  std::vector<v1::Inventory> theirs;
  std::vector<NodeId> ids;
  for (uint32_t i = 0; i < cluster_.size(); ++i) {
    if (cluster_.view(NodeId(i)).joined) ids.emplace_back(i);
  }
  ids = Seated(ids, cluster_.options().seats);
  for (const NodeId id : ids) {
    there.entries.push_back(cluster_.hosts().entries[id.value()]);
    theirs.push_back(inventories[id.value()]);
  }
  plan::PlanOptions wanted = cluster_.options().plan;
  if (wanted.nodes) wanted.nodes = std::min<uint32_t>(*wanted.nodes, ids.size());
  absl::StatusOr<plan::Plan> planned = plan::Place(there, theirs, wanted);
  if (!planned.ok()) return planned;
  for (plan::PlannedNode& node : planned->nodes) node.node = ids[node.node.value()];
  return planned;
}

bool PlanPhase::CheckNodes() {
  for (const plan::PlannedNode& node : cluster_.plan().nodes) {
    std::string fault = CheckNode(cluster_.options(), node, cluster_.view(node.node).inventory);
    if (!fault.empty()) early_faults_.Add(node.node, std::move(fault), kExitStartAgents);
  }
  if (early_faults_.any()) early_faults_.Conclude();
  return !early_faults_.any();
}

bool PlanPhase::CheckOptions() {
  absl::Status status = CheckStdinRank(cluster_.options(), cluster_.plan());
  if (status.ok()) status = CheckTorchrunAgents(cluster_.options(), cluster_.plan());
  if (!status.ok()) Refuse(status);
  return status.ok();
}

}  // namespace dtrain::job
