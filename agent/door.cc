// SPDX-License-Identifier: Apache-2.0
#include "agent/door.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/log/log.h"

namespace dtrain::agent {
namespace {

// The system's maximum, as for the sockets of this node (resident.cc).
constexpr int kBacklog = SOMAXCONN;
// After accept failed for lack of descriptors: others may close some.
constexpr Duration kAcceptPause = std::chrono::milliseconds(200);

}  // namespace

Door::Door(loop::Loop& loop, os::UniqueFd listening, OnConnection on_connection)
    : listening_(std::move(listening)),
      watch_(loop, listening_.get()),
      pause_(loop),
      on_connection_(std::move(on_connection)) {
  Await();
}

void Door::Await() {
  watch_.OnReadable([this] { Accept(); });
}

void Door::Accept() {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  os::UniqueFd socket(accept4(listening_.get(), reinterpret_cast<sockaddr*>(&peer), &size,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
    log::Error(absl::StrCat("cannot accept a connection: ", PosixErrorText(errno)));
    pause_.After(kAcceptPause, [this] { Await(); });
    return;
  }
  Await();
  if (socket) on_connection_(std::move(socket), peer);
}

absl::StatusOr<os::UniqueFd> ListenTcp(const std::string& where) {
  const size_t colon = where.rfind(':');
  std::string address = where.substr(0, colon);
  if (address.size() > 2 && address.front() == '[' && address.back() == ']') {
    address = address.substr(1, address.size() - 2);
  }
  uint32_t port = 0;
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  v4.sin_family = AF_INET;
  v6.sin6_family = AF_INET6;
  const bool is_v4 = inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1;
  if (colon == std::string::npos || !absl::SimpleAtoi(where.substr(colon + 1), &port) ||
      port > 65535 || (!is_v4 && inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) != 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--listen ", Escape(where), " is not an ADDRESS:PORT, such as 0.0.0.0:9797 or [::]:9797"));
  }
  v4.sin_port = v6.sin6_port = htons(static_cast<uint16_t>(port));
  os::UniqueFd fd(
      socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (fd) (void)setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const auto* name =
      is_v4 ? reinterpret_cast<const sockaddr*>(&v4) : reinterpret_cast<const sockaddr*>(&v6);
  if (!fd || bind(fd.get(), name, is_v4 ? sizeof(v4) : sizeof(v6)) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return PosixError(errno, absl::StrCat("listen on ", where));
  }
  return fd;
}

std::string AddressText(const sockaddr_storage& peer) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (peer.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(peer).sin_addr, text, sizeof(text));
  } else if (peer.ss_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr, text, sizeof(text));
  }
  return text;
}

std::string BoundTo(int socket) {
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) != 0) return "?";
  if (own.ss_family == AF_INET6) {
    return absl::StrCat("[", AddressText(own),
                        "]:", ntohs(reinterpret_cast<const sockaddr_in6&>(own).sin6_port));
  }
  return absl::StrCat(AddressText(own), ":",
                      ntohs(reinterpret_cast<const sockaddr_in&>(own).sin_port));
}

}  // namespace dtrain::agent
