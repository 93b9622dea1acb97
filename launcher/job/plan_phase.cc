// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/plan_phase.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/base/worker_needs.h"
#include "launcher/job/cluster.h"
#include "launcher/job/nested.h"
#include "launcher/job/outcome.h"
#include "launcher/plan/free.h"
#include "rendezvous/barrier_core.h"

namespace dtrain::job {

bool HasContract(const JobOptions& options, v1::Contract contract) {
  const auto& all = options.part.contracts();
  return std::find(all.begin(), all.end(), contract) != all.end();
}

std::string CheckNode(const JobOptions& options, const plan::PlannedNode& node,
                      const v1::Inventory& inventory) {
  const size_t workers = node.workers.size();
  const uint64_t files = OpenFilesFor(workers);
  // Zero: not known.
  const auto too_low = [](uint64_t limit, uint64_t needed) { return limit != 0 && limit < needed; };
  if (too_low(inventory.open_files_limit(), files)) {
    return absl::StrCat(Count(workers, "worker"), " need ", files, " open files, and the limit is ",
                        inventory.open_files_limit(),
                        "; raise it (ulimit -n), or place fewer there");
  }
  if (too_low(inventory.processes_limit(), ProcessesFor(workers))) {
    return absl::StrCat(Count(workers, "worker"), " exceed the limit of ",
                        inventory.processes_limit(),
                        " processes; raise it (ulimit -u), or place fewer there");
  }
  if (options.part.require_cgroup() && !inventory.cgroup_writable()) {
    return "workers cannot have cgroups of their own there (--require-cgroup): no cgroup v2 that "
           "the agent may write to";
  }
  return "";
}

absl::Status CheckStdinRank(const JobOptions& options, const plan::Plan& plan) {
  const std::string& rank = options.stdin_rank;
  uint32_t number = 0;
  if (rank.empty() || rank == "none" || rank == "all") return absl::OkStatus();
  if (absl::SimpleAtoi(rank, &number) && number < plan.world_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--stdin ", Escape(rank), ": the ranks are 0 to ",
                                                 plan.world_size - 1,
                                                 ", and there are \"none\" and \"all\""));
}

// Where each rank is itself a launcher, several on a node would be as many jobs.
absl::Status CheckTorchrunAgents(const JobOptions& options, const plan::Plan& plan) {
  if (!HasContract(options, v1::CONTRACT_TORCHRUN_AGENT)) return absl::OkStatus();
  if (options.part.agent_store()) {
    return absl::InvalidArgumentError(
        "--agent-store and --contract torchrun-agent cannot be combined: torchrun on rank 0's host "
        "serves the store at MASTER_PORT; leave out --agent-store");
  }
  for (const plan::PlannedNode& node : plan.nodes) {
    if (node.workers.size() == 1) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--contract torchrun-agent is for one torchrun on each node, and ", node.entry.host,
        " would run ", Count(node.workers.size(), "rank"), ": use --ppn 1"));
  }
  return absl::OkStatus();
}

Launchers FindLaunchers(const JobOptions& options, const plan::Plan& plan) {
  Launchers found;
  if (plan.world_size < 2 || HasContract(options, v1::CONTRACT_TORCHRUN_AGENT)) return found;
  const bool one_each =
      std::all_of(plan.nodes.begin(), plan.nodes.end(),
                  [](const plan::PlannedNode& node) { return node.workers.size() == 1; });
  for (const v1::Program& program : options.part.programs()) {
    const std::optional<NestedLauncher> nested = NestedIn(program);
    if (!nested) continue;
    if (nested->meets && one_each && options.part.programs_size() == 1 &&
        HasContract(options, v1::CONTRACT_TORCH) && !options.part.agent_store()) {
      found.torchrun_agents = true;
      return found;
    }
    found.warnings.push_back(
        absl::StrCat(nested->name, " starts ranks of its own, and each of the job's ",
                     Count(plan.world_size, "rank"),
                     " runs it: they will not be one job. For one job, use `dtrain ", nested->face,
                     " ...` with the same arguments",
                     nested->meets ? ", or one torchrun on each node (--ppn 1)" : ""));
  }
  return found;
}

std::vector<std::string> ShellWarnings(const JobOptions& options, const plan::Plan& plan,
                                       const std::vector<NodeView>& views) {
  const v1::Inherited& shell = options.part.inherited();
  std::vector<std::string> out;
  if (options.attempt > 0 || shell.boot_id().empty()) return out;
  const bool others = plan.nodes.size() > 1;
  for (const plan::PlannedNode& node : plan.nodes) {
    const v1::Inventory& there = views[node.node.value()].inventory;
    if (there.boot_id() != shell.boot_id() ||
        there.network_namespace() != shell.network_namespace()) {
      continue;
    }
    const std::string& host = node.entry.host;
    if (!shell.cpus().empty() && there.allowed_cpus() != shell.cpus()) {
      out.push_back(absl::StrCat(host, ": this shell is confined to CPUs ", shell.cpus(),
                                 ", and the job's ranks are not, as dtrain's agent there is not "
                                 "(it has CPUs ",
                                 there.allowed_cpus(),
                                 "): put taskset before the program instead"));
    } else if (!shell.cpus().empty() && others) {
      out.push_back(absl::StrCat(host, ": this shell is confined to CPUs ", shell.cpus(),
                                 ", and so are the ranks there; those on other hosts are not"));
    }
    if (others && shell.other_limits_size() > 0) {
      out.push_back(absl::StrCat(host,
                                 ": limits of this shell do not hold for ranks on other "
                                 "hosts: ",
                                 absl::StrJoin(shell.other_limits(), ", ")));
    }
    break;
  }
  return out;
}

std::vector<std::string> WarningsOf(const std::vector<NodeView>& views) {
  std::map<std::string, std::vector<std::string>> hosts_of;
  for (const NodeView& view : views) {
    for (const std::string& warning : view.inventory.warnings()) {
      hosts_of[Printable(warning)].push_back(view.host);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [text, hosts] : hosts_of) {
    lines.push_back(absl::StrCat(rendezvous::FormatHosts(hosts), ": ", text));
  }
  return lines;
}

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
