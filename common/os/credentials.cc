// SPDX-License-Identifier: Apache-2.0
#include "common/os/credentials.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"

namespace dtrain::os {
namespace {

constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD, newer than the headers we build against

absl::Status Differ(absl::string_view what, unsigned real, unsigned effective, unsigned saved) {
  return absl::PermissionDeniedError(absl::StrCat(
      "refuses to run with the rights of two ", what, "s (", what, " id real ", real,
      ", effective ", effective, ", saved ", saved,
      "), as the workers would get them too: remove the setuid and setgid bits of its program "
      "(chmod u-s,g-s), or start it as one user"));
}

}  // namespace

absl::StatusOr<Peer> PeerOf(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return PosixError(errno, "identify the user at the other end of a socket");
  }
  return Peer{peer.pid, peer.uid, peer.gid};
}

absl::StatusOr<UniqueFd> PidfdOfPeer(int socket) {
  int pidfd = -1;
  socklen_t size = sizeof(pidfd);
  if (getsockopt(socket, SOL_SOCKET, kPeerPidfd, &pidfd, &size) == 0) return UniqueFd(pidfd);
  if (errno == ENOPROTOOPT) {
    return absl::UnimplementedError(
        "this kernel cannot identify a process by its socket (Linux 6.5 can)");
  }
  if (errno == ESRCH || errno == EINVAL) return absl::NotFoundError("the process has ended");
  return PosixError(errno, "identify the process at the other end of a socket");
}

absl::Status CheckOneIdentity() {
  uid_t real = 0, effective = 0, saved = 0;
  if (getresuid(&real, &effective, &saved) != 0) return PosixError(errno, "ask for the user id");
  if (real != effective || real != saved) return Differ("user", real, effective, saved);
  gid_t real_group = 0, effective_group = 0, saved_group = 0;
  if (getresgid(&real_group, &effective_group, &saved_group) != 0) {
    return PosixError(errno, "ask for the group id");
  }
  if (real_group != effective_group || real_group != saved_group) {
    return Differ("group", real_group, effective_group, saved_group);
  }
  return absl::OkStatus();
}

}  // namespace dtrain::os
