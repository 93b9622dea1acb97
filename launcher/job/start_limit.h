// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "launcher/job/cluster.h"
#include "launcher/job/early_faults.h"
#include "launcher/job/stop_phase.h"

namespace dtrain::job {

// --start-timeout: the time for all until the workers run.
class StartLimit {
 public:
  StartLimit(const Cluster& cluster, const EarlyFaults& early_faults, StopPhase& stop);

  void Restart();               // from the beginning
  void Suspend();               // what is awaited has no such limit
  void Credit(Duration pause);  // we ourselves did not run

  TimePoint NextDeadline() const;
  void OnDeadline();

 private:
  std::string Waiting() const;

  const Cluster& cluster_;
  const EarlyFaults& early_faults_;
  StopPhase& stop_;
  TimePoint start_by_;
};

}  // namespace dtrain::job
