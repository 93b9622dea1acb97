// SPDX-License-Identifier: Apache-2.0
// From the inventories of all nodes to the plan, or to why there is none.
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/base/worker_needs.h"
#include "launcher/job/job_core_impl.h"

namespace dtrain::job {

void JobImpl::Refuse(const absl::Status& status) {
  Stop({.kind = Verdict::Kind::kRefused,
        .exit_code = kExitUsage,
        .message = std::string(status.message()),
        .rank = {},
        .signal = 0});
}

void JobImpl::MakePlan() {
  if (!PlaceAndPin()) return;
  if (!CheckNodes()) return;
  WarnOfInventories();
  for (const std::string& warning : the_plan.warnings) WarnUser(warning);
  if (!CheckStdinRank()) return;
  actions.push_back(PlanReady{});
  if (options.dry_run) {
    succeeded = true;
    return Stop({});
  }
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i].plan_index) Release(NodeId(i));
  }
  StartProbing();
}

bool JobImpl::PlaceAndPin() {
  std::vector<v1::Inventory> inventories;
  for (const NodeView& view : views) inventories.push_back(view.inventory);
  absl::StatusOr<plan::Plan> placed = plan::Place(hosts, inventories, options.plan);
  if (!placed.ok()) {
    Refuse(placed.status());
    return false;
  }
  std::vector<v1::Inventory> used;
  for (const plan::PlannedNode& node : placed->nodes) {
    used.push_back(std::move(inventories[node.node.value()]));
  }
  if (absl::Status pinned = plan::Pin(*placed, used, options.plan); !pinned.ok()) {
    Refuse(pinned);
    return false;
  }
  the_plan = *std::move(placed);
  ranks.resize(the_plan.world_size);
  for (uint32_t i = 0; i < the_plan.nodes.size(); ++i) {
    const plan::PlannedNode& node = the_plan.nodes[i];
    At(node.node).plan_index = i;
    At(node.node).ranks_left = node.workers.size();
    for (const v1::WorkerSpec& worker : node.workers) {
      ranks[worker.rank()].rank = Rank(worker.rank());
      ranks[worker.rank()].node = node.node;
      if (worker.rank() == 0) master = i;
    }
  }
  return true;
}

// What a shepherd would refuse is refused here, before one starts a worker.
bool JobImpl::CheckNodes() {
  for (const plan::PlannedNode& node : the_plan.nodes) {
    const v1::Inventory& inventory = views[node.node.value()].inventory;
    const size_t workers = node.workers.size();
    // Zero: not known.
    const auto too_low = [](uint64_t limit, uint64_t needed) {
      return limit != 0 && limit < needed;
    };
    if (const uint64_t files = OpenFilesFor(workers);
        too_low(inventory.open_files_limit(), files)) {
      faults.push_back({node.entry.host,
                        absl::StrCat(Count(workers, "worker"), " need ", files,
                                     " open files, and the limit is ", inventory.open_files_limit(),
                                     "; raise it (ulimit -n), or place fewer there"),
                        kExitStartAgents});
    } else if (too_low(inventory.processes_limit(), ProcessesFor(workers))) {
      faults.push_back({node.entry.host,
                        absl::StrCat(Count(workers, "worker"), " are too many, as the limit is ",
                                     inventory.processes_limit(),
                                     " processes; raise it (ulimit -u), or place fewer there"),
                        kExitStartAgents});
    } else if (options.part.require_cgroup() && !inventory.cgroup_writable()) {
      faults.push_back({node.entry.host,
                        "workers cannot have cgroups of their own there (--require-cgroup): no "
                        "cgroup v2 that the agent may write to",
                        kExitStartAgents});
    }
  }
  if (faults.empty()) return true;
  ConcludeEarlyFaults();
  return false;
}

void JobImpl::WarnOfInventories() {
  std::map<std::string, std::vector<std::string>> hosts_of;
  for (const NodeView& view : views) {
    for (const std::string& warning : view.inventory.warnings()) {
      hosts_of[Printable(warning)].push_back(view.host);
    }
  }
  for (const auto& [text, names] : hosts_of) {
    WarnUser(absl::StrCat(rendezvous::FormatHosts(names), ": ", text));
  }
}

bool JobImpl::CheckStdinRank() {
  const std::string& rank = options.stdin_rank;
  uint32_t number = 0;
  if (rank.empty() || rank == "none" || rank == "all") return true;
  if (absl::SimpleAtoi(rank, &number) && number < the_plan.world_size) return true;
  Refuse(absl::InvalidArgumentError(absl::StrCat("--stdin ", Escape(rank), ": the ranks are 0 to ",
                                                 the_plan.world_size - 1,
                                                 ", and there are \"none\" and \"all\"")));
  return false;
}

}  // namespace dtrain::job
