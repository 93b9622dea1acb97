// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/functional/any_invocable.h"
#include "agent/shepherd/checkpoint_look.h"
#include "agent/shepherd/job_code.h"
#include "agent/shepherd/launcher_line.h"
#include "agent/shepherd/pmi_service.h"
#include "agent/shepherd/rank_servers.h"
#include "agent/shepherd/shepherd_core.h"
#include "agent/shepherd/user_signals.h"
#include "agent/shepherd/worker_logs.h"
#include "agent/shepherd/workers.h"
#include "common/base/clock.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// What the launcher asks of the job, each for the part of the shepherd that does it. Loop thread.
class JobRequests {
 public:
  // They outlive it.
  struct Parts {
    const ShepherdCore& core;
    const v1::JobPart& part;  // of the job; empty before it has come
    LauncherLine& launcher;
    Workers& workers;
    UserSignals& user_signals;
    JobCode& code;
    PmiService& pmi;
    RankServers& servers;
    WorkerLogs& logs;
    CheckpointLook& checkpoint;
  };
  struct Handlers {
    absl::AnyInvocable<void(v1::JobPart)> on_part;
    absl::AnyInvocable<void(const v1::StopWorkers&)> on_stop;
    absl::AnyInvocable<void()> on_saving;  // on another node
  };

  JobRequests(Parts parts, Handlers handlers);
  JobRequests(const JobRequests&) = delete;
  JobRequests& operator=(const JobRequests&) = delete;

  void Take(v1::JobRequest request);
  // Another launcher: what the one before has said in part counts no more.
  void BeginAnew() { common_.Clear(); }

 private:
  const Parts parts_;
  Handlers handlers_;
  v1::JobPart common_;  // of the start that is to come
};

}  // namespace dtrain::shepherd
