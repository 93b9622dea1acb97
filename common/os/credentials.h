// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace dtrain::os {

// Who is at the other end of a unix socket, as the kernel says: who connected, or, for a socket
// that was connected, who called listen().
struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};
absl::StatusOr<Peer> PeerOf(int socket);

// The user who owns the socket at the other end of a TCP connection within this machine, as long as
// that end has not closed it. NOT_FOUND: it has, or the connection comes from elsewhere.
absl::StatusOr<uid_t> OwnerOfLocalPeer(int socket);

// That process itself, also where its number has become another's since. NOT_FOUND: it has ended;
// UNIMPLEMENTED: the kernel cannot tell (before Linux 6.5).
absl::StatusOr<UniqueFd> PidfdOfPeer(int socket);

// Fails when this process holds the rights of two users or groups: its real, effective and saved
// ids differ, as a setuid or setgid bit on its program makes them. What it starts could then take
// rights that whoever started it does not have.
absl::Status CheckOneIdentity();

}  // namespace dtrain::os
