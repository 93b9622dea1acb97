// SPDX-License-Identifier: Apache-2.0
#include "runtime/boot/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>

namespace dtrain::runtime {
namespace {

bool IsNumericAddress(const std::string& text) {
  in6_addr parsed;  // large enough for both families
  return inet_pton(AF_INET, text.c_str(), &parsed) == 1 ||
         inet_pton(AF_INET6, text.c_str(), &parsed) == 1;
}

// Bridges of container and virtual machine software: the same address exists on every host.
bool IsVirtualBridge(const std::string& interface) {
  return interface.starts_with("docker") || interface.starts_with("virbr") ||
         interface.starts_with("br-") || interface.starts_with("lxcbr") ||
         interface.starts_with("cni");
}

// IPv4 first, because that is what most clusters route.
template <typename Accept>
const InterfaceAddress* Find(const std::vector<InterfaceAddress>& host, Accept accept) {
  for (const bool v6 : {false, true}) {
    for (const InterfaceAddress& candidate : host) {
      if (candidate.v6 == v6 && accept(candidate)) return &candidate;
    }
  }
  return nullptr;
}

std::string Describe(const std::vector<InterfaceAddress>& host) {
  std::string out;
  for (const InterfaceAddress& a : host)
    out += (out.empty() ? "" : ", ") + a.interface + " " + a.ip;
  return out.empty() ? "none" : out;
}

}  // namespace

Result<std::vector<InterfaceAddress>> ListInterfaceAddresses() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    return Error{DTRAIN_ERROR_RESOURCES,
                 std::string("cannot list this host's network interfaces: ") + strerror(errno)};
  }
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    char text[INET6_ADDRSTRLEN];
    InterfaceAddress entry{i->ifa_name, "", false, (i->ifa_flags & IFF_LOOPBACK) != 0};
    if (i->ifa_addr->sa_family == AF_INET) {
      const auto* v4 = reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
      inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(i->ifa_addr);
      if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;
      inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
      entry.v6 = true;
    } else {
      continue;
    }
    entry.ip = text;
    found.push_back(entry);
  }
  freeifaddrs(first);
  return found;
}

Result<std::string> ChooseAddress(const std::string& address, std::string_view interfaces,
                                  bool all_local, const std::vector<InterfaceAddress>& host) {
  if (!address.empty()) {
    if (IsNumericAddress(address)) return address;
    return Error{DTRAIN_ERROR_ENVIRONMENT,
                 "DTRAIN_ADDRESS=" + Printable(address) + " is not a numeric IPv4 or IPv6 address"};
  }
  if (!interfaces.empty()) {
    for (std::string_view rest = interfaces; !rest.empty();) {
      const std::string_view name = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), name.size() + 1));
      const auto* found =
          Find(host, [&](const InterfaceAddress& a) { return a.interface == name; });
      if (found != nullptr) return found->ip;
    }
    return Error{DTRAIN_ERROR_ENVIRONMENT,
                 "GLOO_SOCKET_IFNAME=" + Printable(interfaces) +
                     " names no interface of this host that is up and has an address; it has: " +
                     Printable(Describe(host))};
  }
  if (all_local) return std::string("127.0.0.1");
  const auto outward = [](const InterfaceAddress& a) {
    return !a.loopback && !IsVirtualBridge(a.interface);
  };
  if (const InterfaceAddress* found = Find(host, outward)) return found->ip;
  return Error{DTRAIN_ERROR_ENVIRONMENT,
               "the job spans several nodes, and this host has no address that others could "
               "connect to (it has: " +
                   Printable(Describe(host)) + "); set DTRAIN_ADDRESS or GLOO_SOCKET_IFNAME"};
}

}  // namespace dtrain::runtime
