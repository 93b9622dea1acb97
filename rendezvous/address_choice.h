// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtrain/v1/node.pb.h"

// Which address of each node the others use. Addresses are proven by connecting, never believed.
// Pure; docs/rendezvous.md has the rules.
namespace dtrain::rendezvous {

// Whether an address is one that the user has in mind.
enum class Meant { kUnsaid, kReached, kWritten };

struct Candidate {
  std::string ip;
  std::string interface_name;
  std::string network;  // "10.1.0.0/16"
  bool physical = false;
  bool v4 = false;
  uint32_t speed_mbps = 0;  // 0: unknown
  Meant meant{};
};

struct Chosen {
  std::string ip;
  std::string interface_name;
  std::string network;
  Meant meant{};
};

// One node of the job, in plan order. The inventory is borrowed.
struct AddressNode {
  std::string host;  // as the user wrote it, a name or an address
  const v1::Inventory* inventory = nullptr;
  std::string reached{};  // the address at which the launcher reached it; empty: not known
};

inline constexpr size_t kMaxCandidates = 8;

// Candidates per node, best first.
using Candidates = std::vector<std::vector<Candidate>>;

// Whether `net` is an interface name, an address or a network in CIDR form (empty: any).
absl::Status CheckNet(absl::string_view net);

// The addresses of each node that others might reach: of interfaces that are up, that `net` admits,
// that no other machine claims too, not loopback, at most kMaxCandidates. For a job of one node
// that is 127.0.0.1, or what `net` admits, loopback too. Fails when a node has none, naming it and
// the addresses it does have: InvalidArgument because of `net`, else Unavailable.
absl::StatusOr<Candidates> FindCandidates(const std::vector<AddressNode>& nodes,
                                          const std::string& net);

// The candidates that would be chosen if all were reachable, one per node: proving these is enough.
Candidates Preferred(const Candidates& candidates);

// Who probes what: element p is for node p, empty when it has nothing to probe. Up to 16 nodes each
// probes all others; beyond that the master, both neighbours and six more. All others probe
// `master`, as all will connect to it.
std::vector<v1::ProbeRequest> MakeProbeRequests(const std::vector<AddressNode>& nodes,
                                                const Candidates& candidates, size_t master,
                                                const std::string& token, uint32_t timeout_ms);

// For each node an address that all its probers reached (a job of one node needs no proof).
// `reports` is parallel to `requests`; outcomes nobody asked for are ignored. Fails when a node has
// none, naming the pairs and their errors.
absl::StatusOr<std::vector<Chosen>> ChooseAddresses(const std::vector<AddressNode>& nodes,
                                                    const Candidates& candidates,
                                                    const std::vector<v1::ProbeRequest>& requests,
                                                    const std::vector<v1::ProbeReport>& reports);

// For the user: which network was chosen of several, and why. "": no node has several.
std::string WhyChosen(const Candidates& candidates, const std::vector<Chosen>& chosen);
// What each node that has several offers.
std::vector<std::string> Offers(const std::vector<AddressNode>& nodes,
                                const Candidates& candidates);

}  // namespace dtrain::rendezvous
