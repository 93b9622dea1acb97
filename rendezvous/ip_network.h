// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::rendezvous {

// An IPv4 or IPv6 address as numbers.
struct IpAddress {
  bool v4 = false;
  std::array<uint8_t, 16> bytes{};  // the first four for IPv4

  // Textual form without scope id or prefix; none when it is not one.
  static std::optional<IpAddress> Parse(absl::string_view text);

  bool IsLoopback() const;
  // Nobody can connect to it from elsewhere without more: 0.0.0.0/8, ::, multicast, broadcast,
  // IPv6 link-local (which needs a scope).
  bool IsUnusable() const;
  std::string ToString() const;
  bool operator==(const IpAddress&) const = default;
};

// A prefix of addresses.
struct IpNetwork {
  IpAddress base;  // host bits zero
  uint32_t length = 0;

  // `length` beyond the address's is cut to it.
  static IpNetwork Of(const IpAddress& address, uint32_t length);
  // "10.0.0.0/8", or an address alone; none when it is neither.
  static std::optional<IpNetwork> Parse(absl::string_view text);

  bool Contains(const IpAddress& address) const;
  std::string ToString() const;
};

}  // namespace dtrain::rendezvous
