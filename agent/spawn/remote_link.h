// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

// What dtrain-spawner passes and names.
namespace dtrain::spawn {

// Of a pidfd; 0: it is none, or the process has ended.
pid_t PidOf(int pidfd);
bool IsPipe(int fd);
// Whether the other end of a unix connection was bound. The spawner takes such a one for the end of
// a socket that listens, and us for one who lies.
bool HasNamedPeer(int socket);
// To a shepherd, where root listens for it: the spawner does before it tells of it. Never waits.
absl::StatusOr<os::UniqueFd> ConnectToLink(const std::string& link);

}  // namespace dtrain::spawn
