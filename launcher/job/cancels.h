// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "launcher/job/cluster.h"
#include "launcher/job/outcome.h"
#include "launcher/job/rank_watch.h"
#include "launcher/job/stop_phase.h"

namespace dtrain::job {

// What ends a job from outside, or is only passed on: signals, the time limit, output that nobody
// takes any more.
class Cancels {
 public:
  Cancels(const Cluster& cluster, Out& out, const RankWatch& rank_watch, StopPhase& stop);

  void OnSignal(const Event& event);
  void OnSignalStopping(const Event& event);
  void OnEndAsked(const Event& event);
  void OnEndAskedStopping(const Event& event);
  void OnOutputFailed(const Event& event);

  TimePoint NextDeadline() const;
  void OnDeadline();

 private:
  void PassOn(int signal, const std::string& from);

  const Cluster& cluster_;
  Out& out_;
  const RankWatch& rank_watch_;
  StopPhase& stop_;
  const TimePoint limit_at_;
  // The first of SIGINT, SIGTERM, SIGHUP, the time limit and EndAsked::cancels.
  TimePoint cancelled_at_ = kNever;
};

}  // namespace dtrain::job
