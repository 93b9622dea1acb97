// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace dtrain::runtime {

// Random bytes that a node's leader publishes to the job alone: a connection that shows them is not
// a stranger's.
using Token = std::array<char, 16>;

// Where the leader of a node listens for those of the others.
struct NodeEndpoint {
  std::string ip;     // numeric
  uint16_t port = 0;  // 0: it could not listen
  Token token{};
};

// nullopt when `ip` is not numeric.
std::optional<sockaddr_storage> SocketAddress(const std::string& ip, uint16_t port);
uint16_t PortOf(const sockaddr_storage& address);

}  // namespace dtrain::runtime
