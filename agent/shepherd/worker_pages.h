// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "agent/shepherd/agent_report.h"
#include "agent/shepherd/launcher_line.h"
#include "agent/shepherd/workers.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// Reads the pages of the workers: tells launcher and agent how far they are, and the launcher the
// spans of their timelines. Loop thread.
class WorkerPages {
 public:
  WorkerPages(loop::Loop& loop, const Workers& workers, AgentReport& report, LauncherLine& launcher)
      : loop_(loop), workers_(workers), report_(report), launcher_(launcher), next_(loop) {}

  // The workers run; they have timelines of so many records, or none.
  void Begin(uint32_t timeline_records);
  // All that there is now.
  void Report();
  void Stop() { next_.Cancel(); }

 private:
  void Watch();
  void Look();
  // Of those whose ring is used to a part that is worth a message.
  void TakeManySpans();
  // Of those that wait now, until fewer than `least` do.
  void TakeSpans(Worker& worker, uint64_t least);

  loop::Loop& loop_;
  const Workers& workers_;
  AgentReport& report_;
  LauncherLine& launcher_;
  uint32_t timeline_records_ = 0;
  TimePoint progress_due_{};
  v1::Spans spans_;  // of TakeSpans: its memory is used again
  loop::Timer next_;
};

}  // namespace dtrain::shepherd
