// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace dtrain::os {

// Orphans among the descendants of this process become its children, to be reaped by it.
absl::Status BecomeSubreaper();

struct ProcessInfo {
  pid_t pid = 0;
  uint64_t start_time = 0;  // with the pid, names a process for good
  char state = '?';         // 'D': in an uninterruptible wait, 'Z': ended, not reaped
};

// Stopped by a signal or a debugger. False also when there is no such process.
bool IsStopped(pid_t pid);

// Processes below `root`, from one pass over /proc: some may have ended since, some may be new.
std::vector<ProcessInfo> Descendants(pid_t root);

// SIGKILL to every descendant of this process that one pass finds. Returns how many there were,
// ended ones not counted. Call again until it returns 0: they may fork meanwhile.
size_t KillDescendants();

// Where in the kernel a process waits ("nfs_wait_on_request"), for who must find out why it cannot
// be killed; "unknown" when that cannot be read.
std::string WaitChannel(pid_t pid);

}  // namespace dtrain::os
