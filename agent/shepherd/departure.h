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
  Departure(loop::Loop& loop, AgentLine& line, WorkerLogs& logs)
      : loop_(loop), line_(line), logs_(logs), limit_(loop) {}

  // The system goes down, and waits for us.
  void Hurry();
  // All is over, and said; again when the agent is lost after that. An agent that had us keep
  // running releases us.
  void Leave();

 private:
  void LeaveOnceSaid();

  loop::Loop& loop_;
  AgentLine& line_;
  WorkerLogs& logs_;
  bool hurried_ = false;
  bool leaving_ = false;
  loop::Timer limit_;
};

}  // namespace dtrain::shepherd
