// SPDX-License-Identifier: Apache-2.0
// From the inventories of all nodes to the plan, or to why there is none.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/base/worker_needs.h"
#include "launcher/job/job_core_impl.h"
#include "launcher/job/nested.h"
#include "launcher/plan/free.h"

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
  if (std::exchange(waiting_for_others, false)) {
    start_by = After(now, options.start_timeout);
    look_again_at = kNever;
    for (NodeView& view : views) view.waiting_for.clear();
  }
  if (!CheckNodes()) return;
  WarnOfInventories();
  for (const std::string& warning : the_plan.warnings) WarnUser(warning);
  if (!CheckStdinRank() || !CheckTorchrunAgents()) return;
  LookForLaunchers();
  if (options.dry_run) {
    actions.push_back(PlanReady{});
    succeeded = true;
    return Stop({});
  }
  // Of those that have no rank now one may get one, if the plan is made again.
  if (options.wait == Duration::zero()) ReleaseIdle();
  ReserveAll();
  StartProbing();
}

void JobImpl::ReleaseIdle() {
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i].plan_index && !views[i].gone) Release(NodeId(i));
  }
}

absl::StatusOr<plan::Plan> JobImpl::PlanOn(const std::vector<v1::Inventory>& inventories) const {
  absl::StatusOr<plan::Plan> planned =
      IsElastic() ? PlaceOnPresent(inventories) : plan::Place(hosts, inventories, options.plan);
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

// On what other jobs leave. When that does not suffice and all would, it is a matter of time.
bool JobImpl::PlaceAndPin() {
  std::vector<v1::Inventory> all, free;
  for (const NodeView& view : views) {
    all.push_back(view.inventory);
    free.push_back(plan::FreeOf(view.inventory, options.plan));
  }
  absl::StatusOr<plan::Plan> placed = PlanOn(free);
  if (placed.ok()) {
    if (absl::Status cores = plan::CheckFreeCores(*placed, all, free); !cores.ok()) placed = cores;
  }
  if (!placed.ok()) {
    const std::string held = plan::FormatHeld(hosts, all);
    if (!held.empty() && PlanOn(all).ok()) {
      Busy(absl::StrCat(placed.status().message(), "\n  held by others: ", held));
    } else {
      Refuse(placed.status());
    }
    return false;
  }
  the_plan = *std::move(placed);
  for (Node& node : nodes) node.plan_index.reset();
  ranks.assign(the_plan.world_size, {});
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
                        absl::StrCat(Count(workers, "worker"), " exceed the limit of ",
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

bool JobImpl::HasContract(v1::Contract contract) const {
  const auto& all = options.part.contracts();
  return std::find(all.begin(), all.end(), contract) != all.end();
}

// Where each rank is itself a launcher, several on a node would be as many jobs.
bool JobImpl::CheckTorchrunAgents() {
  if (!HasContract(v1::CONTRACT_TORCHRUN_AGENT)) return true;
  if (options.part.agent_store()) {
    Refuse(absl::InvalidArgumentError(
        "--agent-store and --contract torchrun-agent cannot be combined: torchrun on rank 0's host "
        "serves the store at MASTER_PORT; leave out --agent-store"));
    return false;
  }
  for (const plan::PlannedNode& node : the_plan.nodes) {
    if (node.workers.size() == 1) continue;
    Refuse(absl::InvalidArgumentError(absl::StrCat(
        "--contract torchrun-agent is for one torchrun on each node, and ", node.entry.host,
        " would run ", Count(node.workers.size(), "rank"), ": use --ppn 1")));
    return false;
  }
  return true;
}

// One torchrun on each node becomes one job; of all other launchers that ranks run, each is a job
// of its own, which is seldom meant.
void JobImpl::LookForLaunchers() {
  torchrun_agents = false;
  if (the_plan.world_size < 2 || HasContract(v1::CONTRACT_TORCHRUN_AGENT)) return;
  const bool one_each =
      std::all_of(the_plan.nodes.begin(), the_plan.nodes.end(),
                  [](const plan::PlannedNode& node) { return node.workers.size() == 1; });
  for (const v1::Program& program : options.part.programs()) {
    const std::optional<NestedLauncher> nested = NestedIn(program);
    if (!nested) continue;
    if (nested->meets && one_each && options.part.programs_size() == 1 &&
        HasContract(v1::CONTRACT_TORCH) && !options.part.agent_store()) {
      torchrun_agents = true;
      return;
    }
    WarnUser(absl::StrCat(nested->name, " starts ranks of its own, and each of the job's ",
                          Count(the_plan.world_size, "rank"),
                          " runs it: they will not be one job. For one job, use `dtrain ",
                          nested->face, " ...` with the same arguments",
                          nested->meets ? ", or one torchrun on each node (--ppn 1)" : ""));
  }
}

}  // namespace dtrain::job
