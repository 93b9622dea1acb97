// SPDX-License-Identifier: Apache-2.0
#include "common/os/credentials.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

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

absl::StatusOr<uid_t> OwnerOfLocalPeer(int socket) {
  sockaddr_in ours{}, theirs{};
  socklen_t size = sizeof(ours);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&ours), &size) != 0) {
    return PosixError(errno, "ask for the address of a connection");
  }
  size = sizeof(theirs);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&theirs), &size) != 0) {
    return PosixError(errno, "ask for the address of a connection's other end");
  }
  // As the kernel prints their end: address and port in hexadecimal, the state (1: established;
  // later ones may belong to nobody any more), two pairs of numbers, retransmissions, and the user.
  const auto text = [](const sockaddr_in& at) {
    char out[16];
    std::snprintf(out, sizeof(out), "%08X:%04X", at.sin_addr.s_addr, ntohs(at.sin_port));
    return std::string(out);
  };
  const std::string wanted = absl::StrCat(text(theirs), " ", text(ours), " 01 ");
  const std::unique_ptr<FILE, int (*)(FILE*)> table(std::fopen("/proc/net/tcp", "re"), std::fclose);
  if (table == nullptr) return PosixError(errno, "read /proc/net/tcp");
  char line[512];
  while (std::fgets(line, sizeof(line), table.get()) != nullptr) {
    const char* at = std::strstr(line, wanted.c_str());
    unsigned uid = 0;
    if (at == nullptr) continue;
    if (std::sscanf(at + wanted.size(), "%*x:%*x %*x:%*x %*x %u", &uid) == 1) return uid;
  }
  return absl::NotFoundError("the other end of a connection has no owner here");
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
