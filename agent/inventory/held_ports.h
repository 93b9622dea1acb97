// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace dtrain::inventory {

// TCP ports of this machine that nobody else is given while this lives: bound, but not listening.
// A worker can still listen on them when it sets SO_REUSEADDR before bind (PyTorch's TCPStore,
// Python's socket servers, Go, Java ...) or runs as the same user and sets SO_REUSEPORT (gRPC);
// one that sets neither fails with "address in use".
class HeldPorts {
 public:
  // All `count` (at most 1024) or none. The last `listening` of them listen from now on: who comes
  // waits for whoever is given the socket.
  static absl::StatusOr<HeldPorts> Hold(uint32_t count, uint32_t listening = 0);

  const std::vector<uint16_t>& ports() const { return ports_; }
  // Those of them that listen.
  std::vector<uint16_t> listening() const { return {ports_.end() - listening_, ports_.end()}; }
  // That holds this port; -1: none does. Who has a copy may listen on it.
  int SocketOf(uint32_t port) const;

 private:
  std::vector<uint16_t> ports_;
  uint32_t listening_ = 0;
  std::vector<os::UniqueFd> sockets_;
};

}  // namespace dtrain::inventory
