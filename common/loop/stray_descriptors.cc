// SPDX-License-Identifier: Apache-2.0
#include "common/loop/stray_descriptors.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <thread>
#include <vector>

#include "common/loop/threads.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"

namespace dtrain::loop {
namespace {

constexpr size_t kUnreadPiece = 16 << 10;
// One process for all sockets of such a time.
constexpr int kPauseMs = 500;
// After our close, for others who have the same socket: dtrain-spawner, which looks whose it is.
constexpr int kHoldMs = 2000;

bool KernelRefuses() {
  static const bool refuses = [] {
    const os::UniqueFd any(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    errno = 0;
    os::RefuseDescriptors(any.get());
    return errno == 0;
  }();
  return refuses;
}

bool MayBringDescriptors(int socket) {
  if (KernelRefuses()) return false;
  int family = 0;
  socklen_t size = sizeof(family);
  return getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 && family == AF_UNIX;
}

// With nothing else open, until nobody can write to `until` any more. Only what a child of a
// process with threads may do. `kept` is sorted and has `until`.
[[noreturn]] void HoldAndExit(const std::vector<unsigned>& kept, int until) {
  unsigned next = 0;
  for (const unsigned fd : kept) {
    if (fd > next) os::CloseRange(next, fd - 1);
    next = fd + 1;
  }
  os::CloseRange(next, os::kEveryDescriptor);
  char byte;
  while (read(until, &byte, 1) < 0 && errno == EINTR) {
  }
  poll(nullptr, 0, kHoldMs);
  _exit(0);
}

// Closes `sockets` here while another process, which nobody waits for, still has them. False:
// no process could be made, and nothing was closed.
bool LeaveToAnother(std::vector<os::UniqueFd>& sockets) {
  const auto pipe = os::Pipe();
  if (!pipe.ok()) return false;
  std::vector<unsigned> kept = {static_cast<unsigned>(pipe->first.get())};
  for (const os::UniqueFd& each : sockets) kept.push_back(static_cast<unsigned>(each.get()));
  std::sort(kept.begin(), kept.end());
  const pid_t child = fork();
  if (child == 0) {
    if (fork() == 0) HoldAndExit(kept, pipe->first.get());
    _exit(0);
  }
  if (child < 0) return false;
  if (const auto pidfd = os::OpenPidfd(child); pidfd.ok()) (void)os::WaitAndReap(pidfd->get());
  sockets.clear();
  return true;
}

class Remains {
 public:
  void Take(os::UniqueFd socket) {
    const std::lock_guard<std::mutex> lock(mutex_);
    sockets_.push_back(std::move(socket));
    if (at_work_) return;
    // Without a thread they stay until the next one comes: their connections have ended.
    auto thread = StartThread("close sockets", [this] { Work(); });
    at_work_ = thread.ok();
    if (at_work_) thread->detach();
  }

 private:
  void Work() {
    for (;;) {
      poll(nullptr, 0, kPauseMs);
      std::vector<os::UniqueFd> taken;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        at_work_ = !sockets_.empty();
        if (!at_work_) return;
        taken.swap(sockets_);
      }
      if (LeaveToAnother(taken)) continue;
      const std::lock_guard<std::mutex> lock(mutex_);
      for (os::UniqueFd& each : taken) sockets_.push_back(std::move(each));
    }
  }

  std::mutex mutex_;
  std::vector<os::UniqueFd> sockets_;  // guarded by mutex_
  bool at_work_ = false;               // guarded by mutex_
};

Remains& TheRemains() {
  static auto* const all = new Remains;  // outlives its thread
  return *all;
}

struct Received {
  ssize_t bytes;  // as of recv(2)
  bool carries;   // descriptors, which were left out
};

Received Receive(int socket, void* to, size_t room, int flags) {
  iovec piece{to, room};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  const ssize_t n = recvmsg(socket, &message, flags | MSG_DONTWAIT);
  return {n, (message.msg_flags & MSG_CTRUNC) != 0};
}

// Else a byte that was sent out of band is passed over, and what it carries is closed.
void ReceiveAllInline(int socket) {
  const int on = 1;
  (void)setsockopt(socket, SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on));
}

}  // namespace

ssize_t ReceiveBytes(int socket, void* to, size_t room) {
  Received next{0, false};
  if (MayBringDescriptors(socket)) {
    ReceiveAllInline(socket);
    next = Receive(socket, to, room, MSG_PEEK);
    if (next.bytes <= 0) return next.bytes;
    room = static_cast<size_t>(next.bytes);
  }
  if (!next.carries) next = Receive(socket, to, room, 0);
  if (!next.carries) return next.bytes;
  errno = EBADMSG;
  return -1;
}

size_t UnreadBytes(int socket) {
  int bytes = 0;
  return ioctl(socket, FIONREAD, &bytes) == 0 && bytes > 0 ? static_cast<size_t>(bytes) : 0;
}

// Unread bytes are left in the queue: so their sender gets ECONNRESET, as from a plain close.
StrangersSocket::~StrangersSocket() {
  if (!socket_ || !MayBringDescriptors(socket_.get())) return;
  shutdown(socket_.get(), SHUT_RD);  // from now on nothing comes
  ReceiveAllInline(socket_.get());
  const int first = 0;
  const bool goes_on =
      setsockopt(socket_.get(), SOL_SOCKET, SO_PEEK_OFF, &first, sizeof(first)) == 0;
  std::vector<char> unread(kUnreadPiece);
  Received next;
  do {
    next = Receive(socket_.get(), unread.data(), unread.size(), MSG_PEEK);
  } while ((next.bytes > 0 && goes_on && !next.carries) || (next.bytes < 0 && errno == EINTR));
  if (next.bytes <= 0) return;
  shutdown(socket_.get(), SHUT_RDWR);
  TheRemains().Take(std::move(socket_));
}

}  // namespace dtrain::loop
