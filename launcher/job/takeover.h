// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "launcher/job/cluster.h"
#include "launcher/job/lease_watch.h"
#include "launcher/job/outcome.h"
#include "launcher/job/rank_table.h"
#include "launcher/job/run_phase.h"
#include "launcher/job/stall_watch.h"
#include "launcher/job/stop_phase.h"

namespace dtrain::job {

// An attempt whose launcher has died, taken over: it begins where that one was, with the plan that
// it has written down. Each node says again what it has said, then Retold; one that does not answer
// within the lease, from now on, is lost.
class Takeover {
 public:
  Takeover(Cluster& cluster, Out& out, RankTable& ranks, LeaseWatch& lease_watch, StopPhase& stop,
           StallWatch& stall_watch, RunPhase& run)
      : cluster_(cluster),
        out_(out),
        ranks_(ranks),
        lease_watch_(lease_watch),
        stop_(stop),
        stall_watch_(stall_watch),
        run_(run) {}

  void Begin(const v1::AttemptRuns& runs);
  absl::Status OnStarted(const Event& event);
  absl::Status OnRetold(const Event& event);

 private:
  void SetPlan(const v1::AttemptRuns& runs);

  Cluster& cluster_;
  Out& out_;
  RankTable& ranks_;
  LeaseWatch& lease_watch_;
  StopPhase& stop_;
  StallWatch& stall_watch_;
  RunPhase& run_;
};

}  // namespace dtrain::job
