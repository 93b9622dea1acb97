// SPDX-License-Identifier: Apache-2.0
#include "common/os/credentials.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/posix_error.h"
#include "common/os/pidfd_stand_in.h"

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

// An end of a TCP connection as words of an address and a port. False: it is no IPv4 address.
bool Place(const sockaddr_storage& end, bool six, uint32_t (&words)[4], uint16_t& port) {
  const uint32_t mapped[4] = {0, 0, htonl(0xFFFF), 0};
  std::memcpy(words, mapped, sizeof(words));
  if (end.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(end);
    words[3] = four.sin_addr.s_addr;
    port = four.sin_port;
  } else {
    const auto& address = reinterpret_cast<const sockaddr_in6&>(end);
    if (!six && !IN6_IS_ADDR_V4MAPPED(&address.sin6_addr)) return false;
    std::memcpy(words, &address.sin6_addr, sizeof(words));
    port = address.sin6_port;
  }
  if (!six) {
    words[0] = words[3];
    words[1] = words[2] = words[3] = 0;
  }
  return true;
}

// An end of a TCP connection as the kernel prints it in /proc/net/tcp, or tcp6: words of the
// address and the port in hexadecimal. Empty: it cannot stand there.
std::string TableText(const sockaddr_storage& end, bool six) {
  uint32_t words[4];
  uint16_t port = 0;
  if (!Place(end, six, words, port)) return "";
  std::string text;
  for (int i = 0; i < (six ? 4 : 1); ++i) absl::StrAppendFormat(&text, "%08X", words[i]);
  absl::StrAppendFormat(&text, ":%04X", ntohs(port));
  return text;
}

// The owner of the end whose line begins with these addresses, theirs first; of established
// connections only: what is left of others belongs to nobody any more, which is printed as root.
absl::StatusOr<uid_t> FindOwner(const char* path, const std::string& addresses) {
  const std::unique_ptr<FILE, int (*)(FILE*)> table(std::fopen(path, "re"), std::fclose);
  if (table == nullptr && errno == ENOENT) return absl::NotFoundError("no IPv6 here");
  if (table == nullptr) return PosixError(errno, absl::StrCat("read ", path));
  const std::string wanted = absl::StrCat(addresses, " 01 ");
  char line[512];
  while (std::fgets(line, sizeof(line), table.get()) != nullptr) {
    const char* at = std::strstr(line, wanted.c_str());
    unsigned uid = 0;
    if (at == nullptr) continue;
    // Behind it two pairs of numbers, retransmissions, and the user.
    if (std::sscanf(at + wanted.size(), "%*x:%*x %*x:%*x %*x %u", &uid) == 1) return uid;
  }
  return absl::NotFoundError("no such connection");
}

// The same by asking for that one connection, which costs the same however many there are.
// UNAVAILABLE: this kernel does not answer (inet_diag).
absl::StatusOr<uid_t> AskForOwner(const sockaddr_storage& theirs, const sockaddr_storage& ours,
                                  bool six) {
  struct {
    nlmsghdr header;
    inet_diag_req_v2 request;
  } question{};
  question.header.nlmsg_len = sizeof(question);
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  inet_diag_req_v2& request = question.request;
  request.sdiag_family = six ? AF_INET6 : AF_INET;
  request.sdiag_protocol = IPPROTO_TCP;
  request.idiag_states = ~0u;
  request.id.idiag_cookie[0] = request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  Place(theirs, six, request.id.idiag_src, request.id.idiag_sport);
  Place(ours, six, request.id.idiag_dst, request.id.idiag_dport);
  const UniqueFd netlink(socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!netlink || send(netlink.get(), &question, sizeof(question), 0) < 0) {
    return absl::UnavailableError("no inet_diag");
  }
  alignas(nlmsghdr) char answer[1024];
  const ssize_t size = recv(netlink.get(), answer, sizeof(answer), 0);
  const auto* header = reinterpret_cast<const nlmsghdr*>(answer);
  if (size < 0 || !NLMSG_OK(header, static_cast<size_t>(size))) {
    return absl::UnavailableError("no inet_diag");
  }
  if (header->nlmsg_type == NLMSG_ERROR) {
    // ENOENT is said of a kernel that lacks the module, too.
    return absl::UnavailableError("not found");
  }
  const auto* found = static_cast<const inet_diag_msg*>(NLMSG_DATA(header));
  // Without such a connection the kernel returns the listener.
  if (found->idiag_state != TCP_ESTABLISHED || found->id.idiag_dport != request.id.idiag_dport) {
    return absl::NotFoundError("no such connection");
  }
  return found->idiag_uid;
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
  // Where pidfds are forbidden, one could not be used.
  const bool usable = HasPidfds();
  if (usable && getsockopt(socket, SOL_SOCKET, kPeerPidfd, &pidfd, &size) == 0) {
    return UniqueFd(pidfd);
  }
  if (!usable || errno == ENOPROTOOPT) {
    return absl::UnimplementedError(
        "this kernel cannot identify a process by its socket (Linux 6.5 can)");
  }
  if (errno == ESRCH || errno == EINVAL) return absl::NotFoundError("the process has ended");
  return PosixError(errno, "identify the process at the other end of a socket");
}

absl::StatusOr<uid_t> OwnerOfLocalPeer(int socket) {
  sockaddr_storage ours{}, theirs{};
  socklen_t size = sizeof(ours);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&ours), &size) != 0) {
    return PosixError(errno, "ask for the address of a connection");
  }
  size = sizeof(theirs);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&theirs), &size) != 0) {
    return PosixError(errno, "ask for the address of a connection's other end");
  }
  // Their end may be an IPv4 socket while ours is an IPv6 one, and the other way round.
  for (const bool six : {false, true}) {
    const std::string from = TableText(theirs, six), to = TableText(ours, six);
    if (from.empty() || to.empty()) continue;
    auto asked = AskForOwner(theirs, ours, six);
    if (asked.ok()) return asked;
    if (absl::IsNotFound(asked.status())) continue;
    auto owner = FindOwner(six ? "/proc/net/tcp6" : "/proc/net/tcp", absl::StrCat(from, " ", to));
    if (!absl::IsNotFound(owner.status())) return owner;
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
