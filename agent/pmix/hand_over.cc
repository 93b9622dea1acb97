// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/hand_over.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/posix_error.h"
#include "common/os/fd.h"

namespace dtrain::pmix {
namespace {

// The end that accept() takes connections from; -1: it is what it always is.
std::atomic<int> given = -1;
int giver = -1;

int Accept(int listener, sockaddr* address, socklen_t* size, int flags) {
  return static_cast<int>(syscall(SYS_accept4, listener, address, size, flags));
}

int TakeGiven(int queue) {
  char byte = 0;
  iovec iov{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(queue, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0) return -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  int connection = -1;
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&connection, CMSG_DATA(header), sizeof(connection));
  }
  return connection;
}

}  // namespace
}  // namespace dtrain::pmix

// The program's own, which the loader finds before the C library's: for libraries, too.
extern "C" __attribute__((visibility("default"))) int accept(int listener, sockaddr* address,
                                                             socklen_t* size) {
  using namespace dtrain::pmix;
  const int queue = given.load();
  if (queue < 0) return Accept(listener, address, size, 0);
  const int stranger = Accept(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (stranger < 0) return -1;
  close(stranger);
  const int connection = TakeGiven(queue);
  if (connection < 0) {
    errno = EAGAIN;
    return -1;
  }
  if (address != nullptr && size != nullptr) {
    sockaddr_in loopback{};
    loopback.sin_family = AF_INET;
    loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::memcpy(address, &loopback, std::min<size_t>(*size, sizeof(loopback)));
    *size = sizeof(loopback);
  }
  return connection;
}

namespace dtrain::pmix {

absl::Status HandOver::Begin() {
  if (dlsym(RTLD_DEFAULT, "accept") != reinterpret_cast<void*>(&accept)) {
    return absl::InternalError("a library in this process has an accept() of its own");
  }
  auto ends = os::SocketPair();
  if (!ends.ok()) return ends.status();
  giver = ends->first.Release();
  given = ends->second.Release();
  return absl::OkStatus();
}

absl::Status HandOver::Give(os::UniqueFd connection, uint16_t port) {
  char byte = 0;
  iovec iov{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = connection.get();
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  if (sendmsg(giver, &message, MSG_NOSIGNAL) < 0)
    return PosixError(errno, "hand a connection over");
  // Waits for the handshake: one that is given up leaves nothing for the server to see.
  const os::UniqueFd bell(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(port);
  if (!bell || connect(bell.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) {
    return PosixError(errno, "connect to the PMIx server of this process");
  }
  return absl::OkStatus();
}

}  // namespace dtrain::pmix
