// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/wildcard_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"

namespace dtrain::inventory {
namespace {

absl::Status SetOption(int fd, int level, int option, int value) {
  if (setsockopt(fd, level, option, &value, sizeof(value)) != 0) {
    return PosixError(errno, "set an option of a TCP socket");
  }
  return absl::OkStatus();
}

absl::StatusOr<BoundSocket> BindFamily(int family, bool reuse) {
  const char* where = family == AF_INET6 ? "bind a TCP port on [::]" : "bind a TCP port on 0.0.0.0";
  os::UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return PosixError(errno, "create a TCP socket");
  if (reuse) {
    absl::Status set = SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (set.ok()) set = SetOption(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1);
    if (!set.ok()) return set;
  }
  sockaddr_storage address = {};
  socklen_t length = sizeof(sockaddr_in);
  address.ss_family = static_cast<sa_family_t>(family);
  if (family == AF_INET6) {
    absl::Status set = SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (!set.ok()) return set;
    length = sizeof(sockaddr_in6);
  }
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    return PosixError(errno, where);
  }
  length = sizeof(address);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return PosixError(errno, "read the port of a TCP socket");
  }
  // sin_port and sin6_port lie at the same place.
  uint16_t port = ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
  return BoundSocket{std::move(fd), port};
}

}  // namespace

absl::StatusOr<BoundSocket> BindWildcard(bool reuse) {
  absl::StatusOr<BoundSocket> v6 = BindFamily(AF_INET6, reuse);
  if (v6.ok() || absl::IsResourceExhausted(v6.status())) return v6;
  // No IPv6 in this kernel, or switched off: EAFNOSUPPORT, EADDRNOTAVAIL, EACCES ...
  absl::StatusOr<BoundSocket> v4 = BindFamily(AF_INET, reuse);
  if (v4.ok()) return v4;
  return absl::Status(v4.status().code(),
                      absl::StrCat(v4.status().message(), " (and ", v6.status().message(), ")"));
}

}  // namespace dtrain::inventory
