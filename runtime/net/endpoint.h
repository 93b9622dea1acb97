// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dtrain::runtime {

// Where the member of a node listens for those of the others.
struct NodeEndpoint {
  std::string ip;               // numeric
  std::vector<uint16_t> ports;  // ports[n] awaits node n, its own number the streams of all
};

// nullopt when `ip` is not numeric.
std::optional<sockaddr_storage> SocketAddress(const std::string& ip, uint16_t port);
uint16_t PortOf(const sockaddr_storage& address);

}  // namespace dtrain::runtime
