// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/os/account.h"
#include "common/os/spawn_error.h"
#include "common/os/unique_fd.h"

namespace dtrain::os {

// What to run, and in which surroundings. Descriptors are borrowed.
struct SpawnSpec {
  std::vector<std::string> argv;  // argv[0]: a path, or a name to look up in the PATH of `env`
  std::vector<std::string> env;   // "NAME=value", all there is
  std::string working_directory;  // empty: as ours. Relative programs are looked up from here
  int stdin_fd = -1;              // -1: /dev/null, likewise below
  int stdout_fd = -1;
  int stderr_fd = -1;
  std::vector<std::pair<int, int>> extra_fds;  // {ours, number in the child}; all others are closed

  bool new_session = false;     // setsid; else a process group of its own, led by the child
  int parent_death_signal = 0;  // sent when the *thread* that spawned it ends
  int cgroup_fd = -1;           // the directory of a cgroup v2 that the child starts in
  std::vector<int> cpus;        // affinity; empty: as ours
  std::vector<std::pair<int, rlimit>> limits;  // {RLIMIT_..., value}
  // Run it as this user, who cannot gain rights by it (no_new_privs); null: as ourselves. Needs
  // root.
  const Account* user = nullptr;
};

struct Child {
  pid_t pid = 0;
  UniqueFd pidfd;
};

// Starts a program at the cost of a vfork. Signals have their default action and none is blocked
// in the child. The call returns when the program runs or has failed to; a failed child is reaped.
// `error` (may be null) tells more than the status does. Not for processes with other threads
// that change the environment meanwhile.
absl::StatusOr<Child> Spawn(const SpawnSpec& spec, SpawnError* error = nullptr);

}  // namespace dtrain::os
