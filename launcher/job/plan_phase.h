// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/job/cluster.h"
#include "launcher/job/early_faults.h"
#include "launcher/job/job_core.h"
#include "launcher/job/outcome.h"
#include "launcher/job/probe_phase.h"
#include "launcher/job/rank_table.h"
#include "launcher/job/reserve_phase.h"
#include "launcher/job/stop_phase.h"

namespace dtrain::job {

bool HasContract(const JobOptions& options, v1::Contract contract);

// What a shepherd would refuse on a node of the plan is refused here, before one starts a worker.
// Empty: fine.
std::string CheckNode(const JobOptions& options, const plan::PlannedNode& node,
                      const v1::Inventory& inventory);

// InvalidArgument for what the user has asked for, and this plan does not allow.
absl::Status CheckStdinRank(const JobOptions& options, const plan::Plan& plan);
absl::Status CheckTorchrunAgents(const JobOptions& options, const plan::Plan& plan);

// One torchrun on each node becomes one job; of all other launchers that ranks run, each is a job
// of its own, which is seldom meant.
struct Launchers {
  bool torchrun_agents = false;
  std::vector<std::string> warnings;
};
Launchers FindLaunchers(const JobOptions& options, const plan::Plan& plan);

// What the shell of the launch has confined itself to, and holds for the ranks of some hosts only.
std::vector<std::string> ShellWarnings(const JobOptions& options, const plan::Plan& plan,
                                       const std::vector<NodeView>& views);

// What the inventories warn of, hosts with the same warning in one line.
std::vector<std::string> WarningsOf(const std::vector<NodeView>& views);

// From the inventories of all nodes to the plan, or to why there is none.
class PlanPhase {
 public:
  PlanPhase(Cluster& cluster, Out& out, RankTable& ranks, EarlyFaults& early_faults,
            StopPhase& stop, ReservePhase& reserve, ProbePhase& probe)
      : cluster_(cluster),
        out_(out),
        ranks_(ranks),
        early_faults_(early_faults),
        stop_(stop),
        reserve_(reserve),
        probe_(probe) {}

  void Begin();
  absl::Status OnInventory(const Event& event);
  void Refuse(const absl::Status& status);

 private:
  bool Place();
  absl::StatusOr<plan::Plan> PlanOn(const std::vector<v1::Inventory>& inventories) const;
  absl::StatusOr<plan::Plan> PlaceOnPresent(const std::vector<v1::Inventory>& inventories) const;
  bool CheckNodes();
  bool CheckOptions();

  Cluster& cluster_;
  Out& out_;
  RankTable& ranks_;
  EarlyFaults& early_faults_;
  StopPhase& stop_;
  ReservePhase& reserve_;
  ProbePhase& probe_;
};

}  // namespace dtrain::job
