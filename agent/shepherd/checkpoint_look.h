// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "agent/shepherd/launcher_line.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/os/spawn.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// Whether the file or folder that rank 0's DTRAIN_CHECKPOINT_FILE names has a complete checkpoint
// that was written since the workers were started and a launcher first asked (--scale-up): nobody
// writes there any more, or the program says so by PATH.complete or PATH/.complete. A child looks:
// the server of the file may be down, and our own thread answers for the whole job. Loop thread.
class CheckpointLook {
 public:
  // `part`: of the job, here before Begin. All must stay. What has not changed for `still` counts
  // as complete.
  CheckpointLook(loop::Loop& loop, const v1::JobPart& part,
                 const std::vector<std::string>& agent_env, LauncherLine& launcher, Duration still)
      : loop_(loop),
        part_(part),
        agent_env_(agent_env),
        launcher_(launcher),
        still_(still),
        patience_(loop_) {}

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
  const Duration still_;
  timespec begin_{};  // by the clock that files have, as the next two
  timespec since_{};  // older ones do not count
  time_t last_look_ = 0;
  std::string path_;  // of the last look
  std::optional<os::Child> child_;
  bool asked_ = false;
  loop::Timer patience_;
};

}  // namespace dtrain::shepherd
