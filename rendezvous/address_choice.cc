// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/address_choice.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "rendezvous/barrier_core.h"

namespace dtrain::rendezvous {
namespace {

// Up to here every pair is tried: 15 connections a node.
constexpr size_t kAllPairs = 16;
constexpr size_t kRandomTargets = 6;
// Pairs named for one node, and nodes named, in one message.
constexpr size_t kMaxPairsShown = 4;
constexpr size_t kMaxNodesShown = 4;

using Selection = std::vector<const Candidate*>;
using Choices = std::vector<Selection>;  // per node, best first

// How good a network is that all nodes are on; greater is better.
using NetworkScore = std::tuple<bool, uint32_t, bool>;  // physical, slowest speed, IPv4

struct NetworkUse {
  Selection best;  // per node
  size_t covered = 0;
};

// One network that has a candidate of every node, physical ones only when asked; empty if none.
Selection OneNetwork(const Choices& candidates, bool physical_only) {
  std::map<std::string, NetworkUse> networks;
  std::vector<std::string> order;  // as node 0 has them
  for (const Candidate* candidate : candidates[0]) {
    if (physical_only && !candidate->physical) continue;
    if (networks.try_emplace(candidate->network).second) order.push_back(candidate->network);
  }
  for (auto& [name, use] : networks) use.best.assign(candidates.size(), nullptr);
  for (size_t n = 0; n < candidates.size(); ++n) {
    for (const Candidate* candidate : candidates[n]) {
      auto it = networks.find(candidate->network);
      if (it == networks.end() || (physical_only && !candidate->physical)) continue;
      if (it->second.best[n] != nullptr) continue;  // candidates come best first
      it->second.best[n] = candidate;
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
Selection EachNode(const Choices& candidates, Pass pass) {
  Selection result;
  for (const Selection& mine : candidates) {
    const auto it = std::find_if(mine.begin(), mine.end(), pass);
    if (it == mine.end()) return {};
    result.push_back(*it);
  }
  return result;
}

// Physical networks first even when each node is on one
// of its own (routed data centres): a tunnel that all share is slower than any of them.
Selection Best(const Choices& candidates) {
  Selection result = OneNetwork(candidates, true);
  for (bool physical : {true, false}) {
    if (result.empty() && !physical) result = OneNetwork(candidates, false);
    for (std::optional<bool> v4 :
         {std::optional(true), std::optional(false), std::optional<bool>()}) {
      if (!result.empty()) return result;
      result = EachNode(candidates, [&](const Candidate* c) {
        return (c->physical || !physical) && (!v4 || c->v4 == *v4);
      });
    }
  }
  return result;
}

// What is meant at least so; of nodes of which nothing is, what is on the same networks. Empty: a
// node has neither.
Choices OnlyMeant(const Choices& candidates, Meant least) {
  std::set<std::string> networks;
  for (const Selection& mine : candidates) {
    for (const Candidate* each : mine) {
      if (each->meant >= least) networks.insert(each->network);
    }
  }
  Choices result;
  for (const Selection& mine : candidates) {
    Selection& kept = result.emplace_back();
    std::copy_if(mine.begin(), mine.end(), std::back_inserter(kept),
                 [&](const Candidate* each) { return each->meant >= least; });
    if (!kept.empty()) continue;
    std::copy_if(mine.begin(), mine.end(), std::back_inserter(kept),
                 [&](const Candidate* each) { return networks.contains(each->network); });
    if (kept.empty()) return {};
  }
  return result;
}

// Whether it is certain that `one` is better than `other`: physical, or faster.
bool IsBetter(const Selection& one, const Selection& other) {
  const auto score = [](const Selection& selection) {
    std::pair<bool, uint32_t> score{true, UINT32_MAX};
    for (const Candidate* each : selection) {
      score.first &= each->physical;
      score.second = std::min(score.second, each->speed_mbps);
    }
    return score;
  };
  const auto [physical, speed] = score(one);
  const auto [other_physical, other_speed] = score(other);
  if (physical != other_physical) return physical;
  return other_speed > 0 && speed > other_speed;
}

// The choice among candidates that all work: what the user wrote, whatever it is; then what a
// name stands for, unless there is better. Names may be those of a slow network for logins.
Selection Select(const Candidates& candidates) {
  Choices all;
  for (const std::vector<Candidate>& mine : candidates) {
    Selection& refs = all.emplace_back();
    for (const Candidate& each : mine) refs.push_back(&each);
  }
  const Choices written = OnlyMeant(all, Meant::kWritten);
  if (!written.empty()) return Best(written);
  Selection best = Best(all);
  const Choices reached = OnlyMeant(all, Meant::kReached);
  if (reached.empty()) return best;
  Selection meant = Best(reached);
  return IsBetter(best, meant) ? best : meant;
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
    result.push_back(
        {candidate->ip, candidate->interface_name, candidate->network, candidate->meant});
  }
  return result;
}

std::string WhyChosen(const Candidates& candidates, const std::vector<Chosen>& chosen) {
  std::set<std::string> used, interfaces, others;
  bool written = false;
  for (size_t n = 0; n < candidates.size(); ++n) {
    const Chosen& mine = chosen[n];
    used.insert(mine.network);
    interfaces.insert(mine.interface_name);
    const bool v4 = mine.ip.find(':') == std::string::npos;
    for (const Candidate& each : candidates[n]) {
      written = written || each.meant == Meant::kWritten;
      // IPv6 beside IPv4 is no other network to people.
      if (each.interface_name != mine.interface_name || each.v4 == v4) others.insert(each.network);
    }
  }
  for (const std::string& network : used) others.erase(network);
  if (others.empty()) return "";
  const auto is_meant = [&](Meant least) {
    return std::any_of(chosen.begin(), chosen.end(),
                       [least](const Chosen& each) { return each.meant >= least; });
  };
  std::string why = "the best that all hosts have";
  if (is_meant(Meant::kReached)) why = "where the names of the hosts lead";
  if (written) {
    why = is_meant(Meant::kWritten)
              ? "which the list of hosts names"
              : "as not all hosts can reach each other at the addresses in the list of hosts";
  }
  const auto list = [](const std::set<std::string>& names) {
    return FormatHosts({names.begin(), names.end()}, kMaxNodesShown);
  };
  return absl::StrCat("the workers use ", list(used), " (", list(interfaces), "), ", why, "; ",
                      list(others), others.size() == 1 ? " is" : " are",
                      " there, too (--net chooses)");
}

std::vector<std::string> Offers(const std::vector<AddressNode>& nodes,
                                const Candidates& candidates) {
  std::vector<std::string> offers;
  for (size_t n = 0; n < nodes.size(); ++n) {
    std::vector<std::string> words;
    for (const Candidate& each : candidates[n]) {
      words.push_back(absl::StrCat(each.ip, " on ", Escape(each.interface_name, 32)));
    }
    if (words.size() < 2) continue;
    offers.push_back(absl::StrCat(nodes[n].host, " has ", FormatHosts(words, kMaxCandidates)));
  }
  return offers;
}

}  // namespace dtrain::rendezvous
