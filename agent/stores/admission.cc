// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/admission.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>

#include "absl/status/statusor.h"
#include "common/os/credentials.h"

namespace dtrain::stores {
namespace {

// "10.0.0.1", also of an IPv4 address that came to an IPv6 socket. Empty: neither.
std::string AddressText(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof(text));
  } else if (address.sa_family == AF_INET6) {
    const in6_addr& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&six);
    inet_ntop(mapped ? AF_INET : AF_INET6, &six.s6_addr[mapped ? 12 : 0], text, sizeof(text));
  }
  return text;
}

std::set<std::string> OwnAddresses() {
  std::set<std::string> own;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return own;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr != nullptr) own.insert(AddressText(*each->ifa_addr));
  }
  freeifaddrs(all);
  return own;
}

}  // namespace

Admission::Admission(const v1::Meeting& meeting) {
  for (const v1::MeetingNode& node : meeting.nodes()) {
    if (node.addresses().empty()) own_ranks_ += node.ranks();
    for (const std::string& address : node.addresses()) {
      nodes_.try_emplace(address, Node{node.host(), node.ranks()});
    }
  }
  for (const std::string& own : OwnAddresses()) nodes_.insert_or_assign(own, Node{});
}

Admission::Guest Admission::Look(int fd) const {
  Guest guest;
  sockaddr_storage peer{};
  auto* const generic = reinterpret_cast<sockaddr*>(&peer);
  socklen_t size = sizeof(peer);
  if (getpeername(fd, generic, &size) != 0) return guest;
  guest.address = AddressText(*generic);
  const auto node = nodes_.find(guest.address);
  if (node == nodes_.end()) return guest;
  guest.node = node->second.name;
  guest.ranks = node->second.ranks;
  guest.local = guest.node.empty();
  if (!guest.local) {
    guest.welcome = true;
    return guest;
  }
  guest.ranks = own_ranks_;
  const absl::StatusOr<uid_t> owner = os::OwnerOfLocalPeer(fd);
  guest.welcome = owner.ok() && *owner == getuid();
  return guest;
}

}  // namespace dtrain::stores
