// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/address_choice.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"

namespace dtrain::rendezvous {
namespace {

// Up to here every pair is tried: 15 connections a node.
constexpr size_t kAllPairs = 16;
constexpr size_t kRandomTargets = 6;
// Pairs named for one node, and nodes named, in one message.
constexpr size_t kMaxPairsShown = 4;
constexpr size_t kMaxNodesShown = 4;

using Selection = std::vector<const Candidate*>;

// How good a network is that all nodes are on; greater is better.
using NetworkScore = std::tuple<bool, uint32_t, bool>;  // physical, slowest speed, IPv4

struct NetworkUse {
  Selection best;  // per node
  size_t covered = 0;
};

// One network that has a candidate of every node, physical ones only when asked; empty if none.
Selection OneNetwork(const Candidates& candidates, bool physical_only) {
  std::map<std::string, NetworkUse> networks;
  std::vector<std::string> order;  // as node 0 has them
  for (const Candidate& candidate : candidates[0]) {
    if (physical_only && !candidate.physical) continue;
    if (networks.try_emplace(candidate.network).second) order.push_back(candidate.network);
  }
  for (auto& [name, use] : networks) use.best.assign(candidates.size(), nullptr);
  for (size_t n = 0; n < candidates.size(); ++n) {
    for (const Candidate& candidate : candidates[n]) {
      auto it = networks.find(candidate.network);
      if (it == networks.end() || (physical_only && !candidate.physical)) continue;
      if (it->second.best[n] != nullptr) continue;  // candidates come best first
      it->second.best[n] = &candidate;
      ++it->second.covered;
    }
  }
  Selection* chosen = nullptr;
  NetworkScore chosen_score;
  for (const std::string& name : order) {
    NetworkUse& use = networks[name];
    if (use.covered < candidates.size()) continue;
    NetworkScore score{true, UINT32_MAX, use.best[0]->v4};
    for (const Candidate* each : use.best) {
      std::get<0>(score) &= each->physical;
      std::get<1>(score) = std::min(std::get<1>(score), each->speed_mbps);
    }
    if (chosen != nullptr && score <= chosen_score) continue;
    chosen = &use.best;
    chosen_score = score;
  }
  return chosen == nullptr ? Selection() : std::move(*chosen);
}

// For each node its best candidate of those that pass; empty when a node has none.
template <typename Pass>
Selection EachNode(const Candidates& candidates, Pass pass) {
  Selection result;
  for (const std::vector<Candidate>& mine : candidates) {
    const auto it = std::find_if(mine.begin(), mine.end(), pass);
    if (it == mine.end()) return {};
    result.push_back(&*it);
  }
  return result;
}

// The choice among candidates that all work. Physical networks first even when each node is on one
// of its own (routed data centres): a tunnel that all share is slower than any of them.
Selection Select(const Candidates& candidates) {
  Selection result = OneNetwork(candidates, true);
  for (bool physical : {true, false}) {
    if (result.empty() && !physical) result = OneNetwork(candidates, false);
    for (std::optional<bool> v4 :
         {std::optional(true), std::optional(false), std::optional<bool>()}) {
      if (!result.empty()) return result;
      result = EachNode(candidates, [&](const Candidate& c) {
        return (c.physical || !physical) && (!v4 || c.v4 == *v4);
      });
    }
  }
  return result;
}

// A fixed sequence (splitmix64), so that a launch can be repeated exactly.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::set<size_t> TargetsOf(size_t prober, size_t count, size_t master) {
  std::set<size_t> targets;
  if (count <= kAllPairs) {
    for (size_t t = 0; t < count; ++t) targets.insert(t);
  } else {
    targets = {master, (prober + 1) % count, (prober + count - 1) % count};
    const size_t wanted = targets.size() + kRandomTargets;
    for (uint64_t i = 0; targets.size() < wanted; ++i) {
      const size_t target = Mix(prober * 1000003 + i) % count;
      if (target != prober) targets.insert(target);
    }
  }
  targets.erase(prober);
  return targets;
}

struct Proof {
  size_t asked = 0;
  size_t reached = 0;
  std::vector<std::string> failures;
};
using Proofs = std::map<std::pair<size_t, std::string>, Proof>;  // by node and address

Proofs Evaluate(const std::vector<AddressNode>& nodes,
                const std::vector<v1::ProbeRequest>& requests,
                const std::vector<v1::ProbeReport>& reports) {
  Proofs proofs;
  for (size_t p = 0; p < requests.size(); ++p) {
    std::map<std::pair<size_t, std::string>, const v1::ProbeOutcome*> outcomes;
    if (p < reports.size()) {
      for (const v1::ProbeOutcome& outcome : reports[p].outcomes()) {
        outcomes.try_emplace({outcome.node(), outcome.ip()}, &outcome);
      }
    }
    for (const v1::ProbeTarget& target : requests[p].targets()) {
      Proof& proof = proofs[{target.node(), target.ip()}];
      ++proof.asked;
      const auto it = outcomes.find({target.node(), target.ip()});
      if (it != outcomes.end() && it->second->reached()) {
        ++proof.reached;
      } else if (proof.failures.size() < kMaxPairsShown) {
        const std::string error =
            it == outcomes.end() ? "no outcome was reported" : Escape(it->second->error());
        proof.failures.push_back(absl::StrCat(nodes[p].host, " cannot reach ",
                                              nodes[target.node()].host, " at ", target.ip(),
                                              " port ", target.port(), ": ", error));
      }
    }
  }
  return proofs;
}

absl::Status Unreachable(const std::vector<AddressNode>& nodes, const Candidates& candidates,
                         const std::vector<size_t>& bad, const Proofs& proofs) {
  std::string text =
      absl::StrCat("no address that all other nodes can reach on ", nodes[bad[0]].host);
  for (size_t i = 1; i < bad.size() && i < kMaxNodesShown; ++i) {
    absl::StrAppend(&text, ", ", nodes[bad[i]].host);
  }
  if (bad.size() > kMaxNodesShown)
    absl::StrAppend(&text, " and ", bad.size() - kMaxNodesShown, " more");
  for (size_t i = 0; i < bad.size() && i < kMaxNodesShown; ++i) {
    size_t shown = 0;
    for (const Candidate& candidate : candidates[bad[i]]) {
      const auto it = proofs.find({bad[i], candidate.ip});
      if (it == proofs.end()) continue;
      for (const std::string& failure : it->second.failures) {
        if (shown++ < kMaxPairsShown) absl::StrAppend(&text, "\n  ", failure);
      }
    }
  }
  absl::StrAppend(&text, "\nOpen the firewall between the nodes, or name a network with --net.");
  return absl::UnavailableError(text);
}

}  // namespace

Candidates Preferred(const Candidates& candidates) {
  Candidates result;
  for (const Candidate* candidate : Select(candidates)) result.push_back({*candidate});
  return result;
}

std::vector<v1::ProbeRequest> MakeProbeRequests(const std::vector<AddressNode>& nodes,
                                                const Candidates& candidates, size_t master,
                                                const std::string& token, uint32_t timeout_ms) {
  std::vector<v1::ProbeRequest> requests(nodes.size());
  for (size_t p = 0; p < nodes.size(); ++p) {
    for (size_t t : TargetsOf(p, nodes.size(), master)) {
      for (const Candidate& candidate : candidates[t]) {
        v1::ProbeTarget& target = *requests[p].add_targets();
        target.set_node(static_cast<uint32_t>(t));
        target.set_ip(candidate.ip);
        target.set_port(nodes[t].inventory->probe_port());
        target.set_expected_reply(nodes[t].inventory->probe_reply());
      }
    }
    if (requests[p].targets().empty()) continue;
    requests[p].set_token(token);
    requests[p].set_timeout_ms(timeout_ms);
  }
  return requests;
}

absl::StatusOr<std::vector<Chosen>> ChooseAddresses(const std::vector<AddressNode>& nodes,
                                                    const Candidates& candidates,
                                                    const std::vector<v1::ProbeRequest>& requests,
                                                    const std::vector<v1::ProbeReport>& reports) {
  const Proofs proofs = Evaluate(nodes, requests, reports);
  Candidates proven(candidates.size());
  std::vector<size_t> bad;
  for (size_t n = 0; n < candidates.size(); ++n) {
    for (const Candidate& candidate : candidates[n]) {
      const auto it = proofs.find({n, candidate.ip});
      const bool reached = it != proofs.end() && it->second.reached == it->second.asked;
      if (reached || nodes.size() == 1) proven[n].push_back(candidate);
    }
    if (proven[n].empty()) bad.push_back(n);
  }
  if (!bad.empty()) return Unreachable(nodes, candidates, bad, proofs);
  std::vector<Chosen> result;
  for (const Candidate* candidate : Select(proven)) {
    result.push_back({candidate->ip, candidate->interface_name, candidate->network});
  }
  return result;
}

}  // namespace dtrain::rendezvous
