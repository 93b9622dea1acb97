// SPDX-License-Identifier: Apache-2.0
#include "agent/systemd.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace dtrain::agent {
namespace {

constexpr int kFirstFd = 3;
constexpr int kMostFds = 2;

std::string TakeVariable(const char* name) {
  const char* value = getenv(name);
  std::string out = value != nullptr ? value : "";
  unsetenv(name);
  return out;
}

bool ForUs(const std::string& pid) {
  int number = 0;
  return absl::SimpleAtoi(pid, &number) && number == getpid();
}

// The path that a listening socket is bound to; empty for one of another family.
std::string PathOf(int fd) {
  sockaddr_un name{};
  socklen_t size = sizeof(name);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return "";
  if (name.sun_family != AF_UNIX || size <= offsetof(sockaddr_un, sun_path)) return "";
  return {name.sun_path, strnlen(name.sun_path, size - offsetof(sockaddr_un, sun_path))};
}

}  // namespace

Systemd Systemd::Take() {
  Systemd given;
  given.notify_socket = TakeVariable("NOTIFY_SOCKET");
  const std::string watchdog = TakeVariable("WATCHDOG_USEC");
  const std::string watched = TakeVariable("WATCHDOG_PID");
  int64_t microseconds = 0;
  if (absl::SimpleAtoi(watchdog, &microseconds) && (watched.empty() || ForUs(watched))) {
    given.watchdog = std::chrono::microseconds(microseconds) / 2;
  }
  const std::string count = TakeVariable("LISTEN_FDS");
  const std::string pid = TakeVariable("LISTEN_PID");
  (void)TakeVariable("LISTEN_FDNAMES");
  int sockets = 0;
  if (!absl::SimpleAtoi(count, &sockets) || sockets > kMostFds || !ForUs(pid)) return given;
  for (int fd = kFirstFd; fd < kFirstFd + sockets; ++fd) {
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    (absl::EndsWith(PathOf(fd), "/http.sock") ? given.http_fd : given.fd).emplace(fd);
  }
  return given;
}

void Systemd::Notify(const std::string& state) const {
  sockaddr_un name{};
  if (notify_socket.empty() || notify_socket.size() >= sizeof(name.sun_path)) return;
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, notify_socket.data(), notify_socket.size());
  if (name.sun_path[0] == '@') name.sun_path[0] = '\0';  // an abstract one
  os::UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return;
  (void)sendto(fd.get(), state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
               reinterpret_cast<const sockaddr*>(&name),
               static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + notify_socket.size()));
}

}  // namespace dtrain::agent
