// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "agent/shepherd/agent_line.h"
#include "agent/shepherd/job_report.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "dtrain/v1/job.pb.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::shepherd {

// Keeps the agent informed of the job here. Loop thread.
class AgentReport {
 public:
  AgentReport(loop::Loop& loop, AgentLine& line) : loop_(loop), line_(line), due_(loop) {}

  // Call Tell or TellLater after changing it.
  JobReport& job() { return job_; }
  const v1::Report& report() const { return job_.report(); }
  void Tell();
  // With what else changes until a second has passed since the last time.
  void TellLater();
  // What still waits for that.
  void TellRest();
  // All is over here.
  void TellEnded(v1::Finished ended);
  // Another agent has come, which knows nothing: what the first one said of the job, and all that
  // was told since. The line is kept.
  void TellAccount();

 private:
  loop::Loop& loop_;
  AgentLine& line_;
  JobReport job_;
  TimePoint told_at_{};
  std::optional<v1::Finished> ended_;
  loop::Timer due_;
};

}  // namespace dtrain::shepherd
