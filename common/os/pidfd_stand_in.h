// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <sys/wait.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

// What takes the place of a pidfd on kernels without them (before Linux 5.4): the read end of a
// pipe whose write end this process closes when the other process ends. SIGCHLD tells of that, so
// this catches it and calls whatever handler was there before; for a process that is not a child a
// timer sends SIGCHLD ten times a second. Of the files of this folder only.
namespace dtrain::os {

inline constexpr auto kWaitPidfd = static_cast<idtype_t>(3);  // P_PIDFD of newer headers

// Whether there are pidfds, and this process may use them: older container runtimes forbid it.
bool HasPidfds();

// Of a child that is not reaped. `pipe`: {read end, write end}, which closes at its exec.
UniqueFd StandInForChild(pid_t pid, std::pair<UniqueFd, UniqueFd> pipe);
// Of any process; NOT_FOUND when there is none of that number.
absl::StatusOr<UniqueFd> StandInForProcess(pid_t pid);

// NOT_FOUND when the process is gone.
absl::Status SignalByStandIn(int fd, int signal);
// The child that a stand-in is of; 0: none, or it was reaped.
pid_t ChildOfStandIn(int fd);
// It was reaped.
void ForgetStandIn(int fd);

}  // namespace dtrain::os
