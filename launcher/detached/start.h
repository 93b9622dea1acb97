// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/os/unique_fd.h"
#include "launcher/detached/job_folder.h"
#include "launcher/detached/supervisor.h"

namespace dtrain::detached {

// A launcher that is being started, as seen by the process that waits for it. Its news come from
// the job's folder, so that it does not matter who starts it.
class LauncherStart {
 public:
  // Has `dtrain resume JOB` started as a process that outlives us, and somebody look after it:
  // systemd, or a minder, in a session of its own, in the folder "/", with nothing of ours open.
  // Stdout and stderr are appended to the job's launcher.log. A minder that the job has already is
  // left to it. Its environment is ours, or that of systemd's manager: the job's own is in its
  // spec. Blocks, up to 10 s for systemd, and beats meanwhile.
  static absl::StatusOr<LauncherStart> Begin(const JobFolder& job, Supervisor by,
                                             Beat beat = NoBeat);

  // One that somebody else has started.
  static LauncherStart Watch(const JobFolder& job) { return LauncherStart(job, Standing()); }

  enum class End { kReached, kOver, kGivenUp };
  // Until a launcher that was not there before us has come so far, or it is sure that none will
  // (kOver), or `go_on`, asked many times a second, does not want to wait any longer.
  End Wait(Standing::Stage stage, absl::FunctionRef<bool()> go_on);

 private:
  LauncherStart(const JobFolder& job, Standing before)
      : job_(job), before_(std::move(before)), last_held_(Clock::now()) {}
  bool HasReached(Standing::Stage stage, bool held) const;
  bool IsOver(bool held);

  JobFolder job_;
  Standing before_;
  os::UniqueFd minder_;  // the one that we have started; none: systemd does it
  TimePoint last_held_;
};

}  // namespace dtrain::detached
