// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "launcher/job/cluster.h"
#include "launcher/job/early_faults.h"
#include "launcher/job/hold_phase.h"
#include "launcher/job/outcome.h"
#include "launcher/job/stop_phase.h"
#include "rendezvous/address_choice.h"

namespace dtrain::job {

// Which address of each node the others reach.
class ProbePhase {
 public:
  ProbePhase(Cluster& cluster, Out& out, const EarlyFaults& early_faults, StopPhase& stop,
             HoldPhase& hold)
      : cluster_(cluster), out_(out), early_faults_(early_faults), stop_(stop), hold_(hold) {}

  void Begin();
  absl::Status OnProbeReport(const Event& event);
  // Of a survey.
  const std::vector<rendezvous::Chosen>& chosen() const { return chosen_; }

 private:
  void Send(rendezvous::Candidates probed);
  void Finish();
  void TellChoice(const std::vector<rendezvous::Chosen>& chosen);
  void NoAddress(const absl::Status& why);

  Cluster& cluster_;
  Out& out_;
  const EarlyFaults& early_faults_;
  StopPhase& stop_;
  HoldPhase& hold_;
  // All by index in the plan.
  std::vector<rendezvous::AddressNode> nodes_;
  rendezvous::Candidates candidates_;  // all
  rendezvous::Candidates probed_;      // of this round
  std::vector<v1::ProbeRequest> requests_;
  std::vector<v1::ProbeReport> reports_;
  std::vector<bool> asked_;  // it owes its report
  size_t due_ = 0;           // that many do
  std::vector<rendezvous::Chosen> chosen_;
};

}  // namespace dtrain::job
