// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "rendezvous/address_choice.h"
#include "rendezvous/barrier_core.h"
#include "rendezvous/ip_network.h"

namespace dtrain::rendezvous {
namespace {

constexpr size_t kMaxInterfaceName = 15;  // IFNAMSIZ - 1

// What --net admits.
struct NetFilter {
  std::optional<IpNetwork> network;
  std::string interface_name;

  static NetFilter Of(const std::string& net) {
    NetFilter filter{IpNetwork::Parse(net), ""};
    if (!filter.network) filter.interface_name = net;
    return filter;
  }
  bool Admits(const v1::Interface& interface, const IpAddress& address) const {
    if (network) return network->Contains(address);
    return interface_name.empty() || interface.name() == interface_name;
  }
};

// Calls `visit(interface, address, parsed)` for all addresses that can be parsed.
template <typename Visit>
void ForEachAddress(const v1::Inventory& inventory, Visit visit) {
  for (const v1::Interface& interface : inventory.interfaces()) {
    for (const v1::Address& address : interface.addresses()) {
      const std::optional<IpAddress> parsed = IpAddress::Parse(address.ip());
      if (parsed) visit(interface, address, *parsed);
    }
  }
}

// Two names of one machine (--allow-same-machine) share its addresses.
bool SameMachine(const AddressNode& a, const AddressNode& b) {
  return !a.inventory->boot_id().empty() && a.inventory->boot_id() == b.inventory->boot_id() &&
         a.inventory->network_namespace() == b.inventory->network_namespace();
}

// For each address the first node, and the first of another machine: an address that two machines
// have proves nothing about either.
using Claims = std::map<std::string, std::vector<size_t>>;

Claims CollectClaims(const std::vector<AddressNode>& nodes) {
  Claims claims;
  for (size_t n = 0; n < nodes.size(); ++n) {
    ForEachAddress(*nodes[n].inventory, [&](const auto&, const auto&, const IpAddress& ip) {
      std::vector<size_t>& who = claims[ip.ToString()];
      if (who.empty() ||
          (who.size() == 1 && who[0] != n && !SameMachine(nodes[who[0]], nodes[n]))) {
        who.push_back(n);
      }
    });
  }
  return claims;
}

// Empty: usable.
std::string WhyNot(const std::vector<AddressNode>& nodes, size_t self, const NetFilter& filter,
                   const Claims& claims, const v1::Interface& interface, const IpAddress& ip) {
  if (!interface.up()) return "down";
  if (ip.IsUnusable()) return "not an address to connect to";
  if (!filter.Admits(interface, ip)) return "not in --net";
  if (nodes.size() == 1) return "";
  if (interface.loopback() || ip.IsLoopback()) return "loopback";
  const auto claim = claims.find(ip.ToString());
  if (claim != claims.end() && claim->second.size() > 1) {
    const size_t first = claim->second[0];
    const size_t other =
        first == self || SameMachine(nodes[first], nodes[self]) ? claim->second[1] : first;
    return absl::StrCat(nodes[other].host, " has it too");
  }
  return "";
}

// What the user has in mind of a node's addresses.
class Wish {
 public:
  explicit Wish(const AddressNode& node)
      : written_(IpAddress::Parse(node.host)), reached_(IpAddress::Parse(node.reached)) {}

  Meant Of(const v1::Interface& interface, const IpAddress& ip) const {
    if (ip == written_) return Meant::kWritten;
    if (ip == reached_) return Meant::kReached;
    // ssh prefers IPv6, workers do not: it is the interface that is meant.
    const bool other_family = reached_ && !reached_->v4 && ip.v4;
    for (const v1::Address& address : interface.addresses()) {
      if (other_family && IpAddress::Parse(address.ip()) == reached_) return Meant::kReached;
    }
    return Meant::kUnsaid;
  }

 private:
  const std::optional<IpAddress> written_, reached_;
};

absl::Status NoCandidate(const AddressNode& node, const std::string& net,
                         const std::vector<std::string>& refused) {
  std::string have =
      refused.empty() ? "it has no address at all" : absl::StrCat("it has ", FormatHosts(refused));
  if (net.empty()) {
    return absl::UnavailableError(
        absl::StrCat(node.host, ": no address that the other nodes could use; ", have));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(node.host, ": --net ", Escape(net, 64), " leaves no address; ", have));
}

std::vector<Candidate> OfOneNode(const v1::Inventory& inventory) {
  Candidate local{.ip = "127.0.0.1", .interface_name = "lo", .network = "127.0.0.0/8", .v4 = true};
  ForEachAddress(inventory, [&](const auto& interface, const v1::Address& address, const auto&) {
    if (interface.loopback() && address.ip() == local.ip) local.interface_name = interface.name();
  });
  return {local};
}

}  // namespace

absl::Status CheckNet(absl::string_view net) {
  if (net.empty() || IpNetwork::Parse(net)) return absl::OkStatus();
  const bool plain = std::all_of(net.begin(), net.end(), [](char c) {
    return c > ' ' && c < 0x7f && c != '/' && c != ',' && c != '^' && c != '=';
  });
  if (plain && net.size() <= kMaxInterfaceName) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--net: \"", Escape(net, 64),
                   "\" is neither a network such as 10.1.0.0/16 nor the name of an interface"));
}

absl::StatusOr<Candidates> FindCandidates(const std::vector<AddressNode>& nodes,
                                          const std::string& net) {
  if (absl::Status status = CheckNet(net); !status.ok()) return status;
  if (nodes.size() == 1 && net.empty()) return Candidates{OfOneNode(*nodes[0].inventory)};
  const NetFilter filter = NetFilter::Of(net);
  const Claims claims = CollectClaims(nodes);
  Candidates result(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    std::vector<Candidate>& mine = result[n];
    const Wish wish(nodes[n]);
    std::vector<std::string> refused;
    ForEachAddress(*nodes[n].inventory, [&](const v1::Interface& interface,
                                            const v1::Address& address, const IpAddress& ip) {
      const std::string why = WhyNot(nodes, n, filter, claims, interface, ip);
      if (!why.empty()) {
        refused.push_back(
            absl::StrCat(ip.ToString(), " on ", Escape(interface.name(), 32), " (", why, ")"));
        return;
      }
      mine.push_back({.ip = ip.ToString(),
                      .interface_name = interface.name(),
                      .network = IpNetwork::Of(ip, address.prefix_length()).ToString(),
                      .physical = interface.physical(),
                      .v4 = ip.v4,
                      .speed_mbps = interface.speed_mbps(),
                      .meant = wish.Of(interface, ip)});
    });
    if (mine.empty()) return NoCandidate(nodes[n], net, refused);
    std::stable_sort(mine.begin(), mine.end(), [](const Candidate& a, const Candidate& b) {
      return std::tuple(a.meant, a.physical, a.speed_mbps, a.v4) >
             std::tuple(b.meant, b.physical, b.speed_mbps, b.v4);
    });
    if (mine.size() > kMaxCandidates) mine.resize(kMaxCandidates);
  }
  return result;
}

}  // namespace dtrain::rendezvous
