// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/base/posix_error.h"
#include "common/os/unique_fd.h"

namespace dtrain::inventory {
namespace {

bool EthtoolCall(int fd, absl::string_view name, void* command) {
  ifreq request = {};
  if (name.size() >= sizeof(request.ifr_name)) return false;
  memcpy(request.ifr_name, name.data(), name.size());
  request.ifr_data = static_cast<char*>(command);
  return ioctl(fd, SIOCETHTOOL, &request) == 0;
}

// "mlx5_core", "veth", "bridge" ...; empty when the device does not say (loopback).
std::string Driver(int fd, absl::string_view name) {
  ethtool_drvinfo info = {};
  info.cmd = ETHTOOL_GDRVINFO;
  if (!EthtoolCall(fd, name, &info)) return "";
  return std::string(info.driver, strnlen(info.driver, sizeof(info.driver)));
}

uint32_t KnownSpeed(uint32_t speed) {
  return speed == static_cast<uint32_t>(SPEED_UNKNOWN) ? 0 : speed;
}

uint32_t SpeedMbps(int fd, absl::string_view name) {
  // The settings, and room for the three link mode masks that follow them; the first call asks how
  // large those are and gets the answer as a negative number.
  alignas(ethtool_link_settings) char buffer[sizeof(ethtool_link_settings) + 3 * 127 * 4] = {};
  auto* modern = reinterpret_cast<ethtool_link_settings*>(buffer);
  modern->cmd = ETHTOOL_GLINKSETTINGS;
  if (EthtoolCall(fd, name, modern) && modern->link_mode_masks_nwords < 0) {
    auto words = static_cast<int8_t>(-modern->link_mode_masks_nwords);
    memset(buffer, 0, sizeof(buffer));
    modern->cmd = ETHTOOL_GLINKSETTINGS;
    modern->link_mode_masks_nwords = words;
    if (EthtoolCall(fd, name, modern)) return KnownSpeed(modern->speed);
  }
  ethtool_cmd older = {};  // kernels before 4.6, and drivers that know only this
  older.cmd = ETHTOOL_GSET;
  if (!EthtoolCall(fd, name, &older)) return 0;
  uint32_t speed = ethtool_cmd_speed(&older);
  return speed == 0xffff ? 0 : KnownSpeed(speed);
}

// Whether packets leave the machine through it. What only joins containers or virtual machines of
// this host, or ends in a program, does not; veth does, being the uplink inside a container.
bool Physical(absl::string_view name, absl::string_view driver, std::optional<int> link_type) {
  constexpr absl::string_view kVirtual[] = {"bridge", "tun", "dummy",  "vxlan",     "openvswitch",
                                            "ifb",    "sit", "gre",    "ipip",      "ip6tnl",
                                            "vti",    "vrf", "geneve", "wireguard", "nlmon"};
  if (!driver.empty()) {
    return std::find(std::begin(kVirtual), std::end(kVirtual), driver) == std::end(kVirtual);
  }
  // A device that names no driver: judge by what carries the frames, and by well-known names.
  if (link_type && *link_type != ARPHRD_ETHER && *link_type != ARPHRD_INFINIBAND) return false;
  for (absl::string_view prefix :
       {"docker", "virbr", "br-", "lxcbr", "cni", "flannel", "tun", "tap"}) {
    if (absl::StartsWith(name, prefix)) return false;
  }
  return true;
}

uint32_t PrefixLength(const sockaddr* netmask) {
  if (netmask == nullptr) return 0;
  if (netmask->sa_family == AF_INET) {
    return static_cast<uint32_t>(
        std::popcount(reinterpret_cast<const sockaddr_in*>(netmask)->sin_addr.s_addr));
  }
  uint32_t bits = 0;
  for (uint8_t byte : reinterpret_cast<const sockaddr_in6*>(netmask)->sin6_addr.s6_addr) {
    bits += static_cast<uint32_t>(std::popcount(byte));
  }
  return bits;
}

void AddAddress(const ifaddrs& entry, v1::Interface& out) {
  char text[INET6_ADDRSTRLEN] = "";
  if (entry.ifa_addr->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(entry.ifa_addr);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
  } else {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
    if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) return;
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  }
  v1::Address* address = out.add_addresses();
  address->set_ip(text);
  address->set_prefix_length(PrefixLength(entry.ifa_netmask));
}

struct Seen {
  v1::Interface interface;
  std::optional<int> link_type;  // ARPHRD_*
};

std::vector<Seen> Collect(const ifaddrs* list) {
  std::vector<Seen> all;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    absl::string_view name = entry->ifa_name;
    // An IPv4 address may carry a label, "eth0:1", which is no interface of its own.
    name = name.substr(0, name.find(':'));
    auto it = std::find_if(all.begin(), all.end(),
                           [&](const Seen& s) { return s.interface.name() == name; });
    if (it == all.end()) {
      it = all.insert(all.end(), Seen());
      it->interface.set_name(std::string(name));
      it->interface.set_up((entry->ifa_flags & IFF_UP) != 0 &&
                           (entry->ifa_flags & IFF_RUNNING) != 0);
      it->interface.set_loopback((entry->ifa_flags & IFF_LOOPBACK) != 0);
    }
    if (entry->ifa_addr == nullptr) continue;  // a tunnel without an address
    int family = entry->ifa_addr->sa_family;
    if (family == AF_PACKET) {
      // sockaddr_ll: family, protocol, index, then the type.
      uint16_t type = 0;
      memcpy(&type, reinterpret_cast<const char*>(entry->ifa_addr) + 8, sizeof(type));
      it->link_type = type;
    } else if (family == AF_INET || family == AF_INET6) {
      AddAddress(*entry, it->interface);
    }
  }
  return all;
}

}  // namespace

absl::StatusOr<std::vector<v1::Interface>> ReadInterfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return PosixError(errno, "list the network interfaces");
  std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  os::UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) fd.Reset(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return PosixError(errno, "open a socket to ask about network interfaces");

  std::vector<v1::Interface> out;
  for (Seen& seen : Collect(list)) {
    v1::Interface& interface = seen.interface;
    if (!interface.loopback()) {
      std::string driver = Driver(fd.get(), interface.name());
      if (driver == "veth" && interface.addresses().empty()) continue;
      interface.set_physical(Physical(interface.name(), driver, seen.link_type));
      interface.set_speed_mbps(SpeedMbps(fd.get(), interface.name()));
    }
    out.push_back(std::move(interface));
  }
  return out;
}

}  // namespace dtrain::inventory
