// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "agent/shepherd/launcher_line.h"
#include "common/loop/loop.h"
#include "common/os/spawn.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// Whether rank 0 has written the file that its DTRAIN_CHECKPOINT_FILE names since the workers were
// started, for a launcher that asks (--scale-up). A child looks: the server of the file may be
// down, and our own thread answers for the whole job. Loop thread.
class CheckpointLook {
 public:
  // `part`: of the job, here before Begin. All must stay.
  CheckpointLook(loop::Loop& loop, const v1::JobPart& part,
                 const std::vector<std::string>& agent_env, LauncherLine& launcher)
      : loop_(loop), part_(part), agent_env_(agent_env), launcher_(launcher), patience_(loop_) {}

  // The workers are about to be started.
  void Begin();
  // Tells the launcher, later. One look at a time.
  void Look();
  // This child of ours has ended. False: it is not the one that looks; else it has been reaped.
  bool OnChild(pid_t pid);
  // The answer is not needed any more.
  void End();

 private:
  std::string Path() const;
  void Start(const std::string& path);
  void Answer(bool newer, std::string trouble = "");

  loop::Loop& loop_;
  const v1::JobPart& part_;
  const std::vector<std::string>& agent_env_;
  LauncherLine& launcher_;
  timespec begin_{};  // by the clock that files have
  std::string path_;  // of the last look
  std::optional<os::Child> child_;
  bool asked_ = false;
  loop::Timer patience_;
};

}  // namespace dtrain::shepherd
