// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "launcher/job/cluster.h"
#include "launcher/job/early_faults.h"
#include "launcher/job/outcome.h"
#include "launcher/job/parts.h"
#include "launcher/job/reserve_phase.h"
#include "launcher/job/start_phase.h"

namespace dtrain::job {

// From the proven addresses until ports are held, and what was to be reserved is.
class HoldPhase {
 public:
  HoldPhase(Cluster& cluster, Out& out, const EarlyFaults& early_faults, ReservePhase& reserve,
            StartPhase& start)
      : cluster_(cluster),
        out_(out),
        early_faults_(early_faults),
        reserve_(reserve),
        start_(start) {}

  void Begin(std::vector<rendezvous::Chosen> addresses);
  absl::Status OnPortsHeld(const Event& event);
  absl::Status OnReserved(const Event& event);

 private:
  uint32_t PortsOf(size_t plan_index) const;
  void TakeOursOf(std::vector<uint32_t>& held);
  void StartIfReady();

  Cluster& cluster_;
  Out& out_;
  const EarlyFaults& early_faults_;
  ReservePhase& reserve_;
  StartPhase& start_;
  MeetingPoints points_;
  std::vector<bool> asked_;  // by index in the plan: it owes its ports
  size_t due_ = 0;           // that many do
};

}  // namespace dtrain::job
