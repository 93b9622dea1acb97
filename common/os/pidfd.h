// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

// Processes by descriptor: unlike a pid, it never comes to mean another process. On kernels without
// pidfds (before Linux 5.4) a pipe takes their place, and SIGCHLD is caught: pidfd_stand_in.h.
namespace dtrain::os {

struct ExitStatus {
  int code = 0;    // valid when signal is 0
  int signal = 0;  // that killed it
  bool core_dumped = false;
};

// NOT_FOUND when there is no such process.
absl::StatusOr<UniqueFd> OpenPidfd(pid_t pid);

// NOT_FOUND when the process is gone.
absl::Status SendSignal(int pidfd, int signal);

// Reaps a child when it has ended; empty while it runs. Never blocks.
absl::StatusOr<std::optional<ExitStatus>> TryReap(int pidfd);
// Waits for a child to end, and reaps it.
absl::StatusOr<ExitStatus> WaitAndReap(int pidfd);

// A child of this process that has ended and waits to be reaped; 0 when there is none. It stays
// unreaped, so its pid and process group cannot be taken by others yet.
pid_t EndedChild();
// Whether this process has children at all, ended ones included.
bool HasChildren();
// Reaps an ended child of which nothing is to be known.
void ReapQuietly(pid_t pid);

}  // namespace dtrain::os
