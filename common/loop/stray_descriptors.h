// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <utility>

#include "common/os/unique_fd.h"

// What strangers send through a unix socket may carry descriptors that nobody asked for. The last
// one who holds such a descriptor closes it, which can take as long as its sender likes: a TCP
// connection that lingers, memory to free, a device. So no thread of ours may be the last. Since
// Linux 6.16 the kernel keeps descriptors away (os::RefuseDescriptors); before, this does.
namespace dtrain::loop {

// recv(2) that never waits. -1 with EBADMSG: what comes next carries descriptors, and stays where
// it is, as those do. Any socket.
ssize_t ReceiveBytes(int socket, void* to, size_t room);
// The number of bytes in the receive queue: a bound for a reader whose peer may never stop writing.
size_t UnreadBytes(int socket);

// Owns a socket whose other end is a stranger's. Where descriptors have come that nobody has read,
// it is left to another process, whose exit waits for nothing; the connection ends at once.
class StrangersSocket {
 public:
  StrangersSocket() = default;
  explicit StrangersSocket(os::UniqueFd socket) : socket_(std::move(socket)) {}
  StrangersSocket(StrangersSocket&&) = default;
  StrangersSocket& operator=(StrangersSocket&& other) noexcept {
    std::swap(socket_, other.socket_);
    return *this;
  }
  ~StrangersSocket();
  int get() const { return socket_.get(); }
  explicit operator bool() const { return static_cast<bool>(socket_); }
  // For a caller who trusts the peer.
  os::UniqueFd Release() { return std::move(socket_); }

 private:
  os::UniqueFd socket_;
};

}  // namespace dtrain::loop
