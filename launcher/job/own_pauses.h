// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "launcher/job/cluster.h"
#include "launcher/job/stop_phase.h"

namespace dtrain::job {

// When this launcher itself did not run (stopped, asleep, without CPU time) for so long that nodes
// may have ended the job: that is told as ours, not as theirs.
class OwnPauses {
 public:
  OwnPauses(const Cluster& cluster, StopPhase& stop) : cluster_(cluster), stop_(stop) {}

  void OnSlept(const Event& event);
  void StoodStill(TimePoint begin, Duration length);

  // Whether the nodes have ended, or are ending, the job's workers because we stood still.
  bool MayHaveEndedTheJob() const;
  // After word from a node that it has ended its workers, or let us go, because we were silent.
  // True: it is lost by our fault, as told already, or now.
  bool Blame();
  // The same where a rank was told to stop by its agent. It also replaces a failure that was
  // reported before, but happened after that.
  void BlameForRank(FailureOrder order);
  // Of a node that may have been lost by our fault, but has not said so.
  std::string WithThem(std::string text) const;

 private:
  Duration Patience() const;  // of nodes with a launcher that is silent
  std::string Message() const;

  const Cluster& cluster_;
  StopPhase& stop_;
  Duration still_ = Duration::zero();  // we did not run, by the last pauses
  TimePoint still_until_;              // the end of the last
};

}  // namespace dtrain::job
