// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
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
  std::optional<mode_t> umask;                 // none: as ours
  // As far as the system lets us: with less than our own the child may have ours. None: as ours.
  std::optional<int> nice;
  // For SpawnAs alone: run it as this user, who cannot gain rights by it (no_new_privs). Needs
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

// A child that may not run its program yet.
struct PendingChild {
  Child child;
  UniqueFd report;  // readable once there is something to tell; non-blocking
  std::string program, directory;

  // Empty: nothing to tell yet. OK: its program runs, or it was killed before. Never blocks.
  std::optional<absl::Status> Report() const;
};

// As Spawn, for `spec.user`, who may stop the child from the moment it is theirs: so this waits for
// nothing. The child costs a fork. It has closed all descriptors but those of `spec` before it
// changes its user, and until its program runs that user can neither trace it nor take descriptors
// from it. It has a session keyring of its own and a umask of 022. The caller watches the report,
// kills the child when it takes too long, and reaps it in any case.
absl::StatusOr<PendingChild> SpawnAs(const SpawnSpec& spec);

}  // namespace dtrain::os
