// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/shepherd/agent_line.h"
#include "agent/shepherd/worker_logs.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"

namespace dtrain::shepherd {

// How long this process stays when all is over: for output and words that are here and nowhere
// else. Then it stops the loop. Loop thread.
class Departure {
 public:
  Departure(loop::Loop& loop, AgentLine& line, WorkerLogs& logs, Duration going_down)
      : loop_(loop),
        line_(line),
        logs_(logs),
        going_down_(going_down),
        said_limit_(loop),
        silence_limit_(loop) {}

  // The system goes down, and waits for us: another agent has `going_down` to come.
  void Hurry();
  // The launcher was given up, having said nothing for so long. If its agent is stopped, too,
  // nobody reads what is here or releases us, and nothing tells us so. So we stay for as long again
  // at most: from the end of the workers, from this, and from the last word of an agent, a reader
  // or a launcher, whichever is latest. While there is no agent, the lease for the next one counts.
  void OnSilent(Duration silence);
  // All is over, and said; again when the agent is lost after that. An agent that had us keep
  // running releases us.
  void Leave();

 private:
  void LeaveOnceSaid();
  TimePoint LastSign() const;
  void WatchSilence();

  loop::Loop& loop_;
  AgentLine& line_;
  WorkerLogs& logs_;
  const Duration going_down_;
  bool hurried_ = false;
  bool leaving_ = false;
  Duration silence_ = Duration::zero();  // zero: the launcher was not given up
  TimePoint waits_from_{};               // of our own doings what came last
  loop::Timer said_limit_, silence_limit_;
};

}  // namespace dtrain::shepherd
