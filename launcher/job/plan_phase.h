// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/job/cluster.h"
#include "launcher/job/early_faults.h"
#include "launcher/job/out.h"
#include "launcher/job/probe_phase.h"
#include "launcher/job/rank_table.h"
#include "launcher/job/reserve_phase.h"
#include "launcher/job/stop_phase.h"

namespace dtrain::job {

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
