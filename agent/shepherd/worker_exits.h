// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "agent/shepherd/aborts.h"
#include "agent/shepherd/job_cgroup.h"
#include "agent/shepherd/launcher_line.h"
#include "agent/shepherd/shepherd_core.h"
#include "agent/shepherd/worker_scratch.h"
#include "agent/shepherd/workers.h"
#include "common/loop/loop.h"
#include "common/os/pidfd.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// Puts together what the launcher is told of a worker's end, and keeps it for launchers that take
// the job over. Loop thread.
class WorkerExits {
 public:
  WorkerExits(loop::Loop& loop, const Workers& workers, const Aborts& aborts, JobCgroup& cgroup,
              WorkerScratch& scratch, LauncherLine& launcher)
      : loop_(loop),
        workers_(workers),
        aborts_(aborts),
        cgroup_(cgroup),
        scratch_(scratch),
        launcher_(launcher) {}

  v1::WorkerExit Of(const Worker& worker, const os::ExitStatus& status, const ShepherdCore& core);
  void Say(const v1::JobEvent& exit);
  // All of them, to a launcher that has not heard them.
  void SayAgain();

 private:
  static void DropLastWords(v1::WorkerExit& exit);
  void AddLastWords(const Worker& worker, v1::WorkerExit& exit);

  loop::Loop& loop_;
  const Workers& workers_;
  const Aborts& aborts_;
  JobCgroup& cgroup_;
  WorkerScratch& scratch_;
  LauncherLine& launcher_;
  std::vector<v1::JobEvent> said_;
  size_t words_said_ = 0;  // bytes of last words in it
};

}  // namespace dtrain::shepherd
