// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ip_network.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace dtrain::rendezvous {

std::optional<IpAddress> IpAddress::Parse(absl::string_view text) {
  const std::string copy(text);
  if (copy.find('\0') != std::string::npos) return std::nullopt;
  IpAddress address;
  if (inet_pton(AF_INET, copy.c_str(), address.bytes.data()) == 1) {
    address.v4 = true;
    return address;
  }
  address.bytes.fill(0);
  if (inet_pton(AF_INET6, copy.c_str(), address.bytes.data()) == 1) return address;
  return std::nullopt;
}

bool IpAddress::IsLoopback() const {
  if (v4) return bytes[0] == 127;
  IpAddress one;
  one.bytes[15] = 1;
  return *this == one;
}

bool IpAddress::IsUnusable() const {
  if (v4) return bytes[0] == 0 || bytes[0] >= 224;
  const bool link_local = bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
  return *this == IpAddress() || bytes[0] == 0xff || link_local;
}

std::string IpAddress::ToString() const {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(v4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof(text));
  return text;
}

IpNetwork IpNetwork::Of(const IpAddress& address, uint32_t length) {
  IpNetwork network{address, std::min(length, address.v4 ? 32u : 128u)};
  for (uint32_t i = 0; i < 16; ++i) {
    const uint32_t kept = network.length > 8 * i ? std::min(network.length - 8 * i, 8u) : 0;
    network.base.bytes[i] &= static_cast<uint8_t>(0xff00u >> kept);
  }
  return network;
}

std::optional<IpNetwork> IpNetwork::Parse(absl::string_view text) {
  const size_t slash = text.find('/');
  const std::optional<IpAddress> address = IpAddress::Parse(text.substr(0, slash));
  if (!address) return std::nullopt;
  uint32_t length = address->v4 ? 32 : 128;
  if (slash != absl::string_view::npos) {
    const uint32_t most = length;
    const absl::string_view digits = text.substr(slash + 1);
    if (digits.empty() || digits.size() > 3) return std::nullopt;
    if (!std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      return std::nullopt;
    }
    if (!absl::SimpleAtoi(digits, &length) || length > most) return std::nullopt;
  }
  return Of(*address, length);
}

bool IpNetwork::Contains(const IpAddress& address) const {
  return address.v4 == base.v4 && Of(address, length).base == base;
}

std::string IpNetwork::ToString() const { return absl::StrCat(base.ToString(), "/", length); }

}  // namespace dtrain::rendezvous
