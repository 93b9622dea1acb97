// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace dtrain::runtime {

// One address of a network interface of this host that is up.
struct InterfaceAddress {
  std::string interface;
  std::string ip;  // numeric
  bool v6 = false;
  bool loopback = false;
};

// The addresses a peer could connect to: IPv6 link-local ones, which need a scope, are left out.
Result<std::vector<InterfaceAddress>> ListInterfaceAddresses();

// Which address this rank listens on: `address` (DTRAIN_ADDRESS) if given, else the first of the
// interfaces named in `interfaces` (GLOO_SOCKET_IFNAME, exact names with commas), else loopback
// when the whole job is on this node, else the host's first address that is not loopback.
Result<std::string> ChooseAddress(const std::string& address, std::string_view interfaces,
                                  bool all_local, const std::vector<InterfaceAddress>& host);

}  // namespace dtrain::runtime
