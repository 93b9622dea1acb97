// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/pmix_core.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::rendezvous {
namespace {

// PMIX_ERR_NOT_FOUND and PMIX_ERR_LOST_CONNECTION, in every version.
constexpr int32_t kNotFound = -46;
constexpr int32_t kLost = -61;
// Of one node: a few per rank, each rank asking for the others one after the other.
constexpr size_t kMostAsked = 65536;
constexpr size_t kMostFences = 65536;

}  // namespace

PmixCore::PmixCore(v1::PmixJob job) : job_(std::move(job)) {
  finished_.resize(static_cast<size_t>(job_.nodes_size()));
  asking_.resize(finished_.size());
  size_t size = 0;
  for (const v1::PmixNode& node : job_.nodes()) size += static_cast<size_t>(node.ranks_size());
  ranks_.resize(size);
  for (size_t node = 0; node < finished_.size(); ++node) {
    for (const uint32_t rank : job_.nodes(static_cast<int>(node)).ranks()) {
      ranks_.at(rank).node = node;
    }
  }
}

absl::Status PmixCore::CheckOwn(size_t node, const v1::PmixRanks& ranks) const {
  for (const uint32_t rank : ranks.ranks()) {
    if (rank >= ranks_.size() || ranks_[rank].node != node) {
      return absl::InvalidArgumentError(absl::StrCat("it speaks for rank ", rank));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PmixCore::Send>> PmixCore::OnUp(size_t node, v1::PmixUp up) {
  if (finished_.at(node)) {
    return absl::FailedPreconditionError("its workers had all ended");
  }
  switch (up.kind_case()) {
    case v1::PmixUp::kAsk: {
      v1::PmixDown down;
      *down.mutable_job() = job_;
      return std::vector<Send>{{{node}, std::move(down)}};
    }
    case v1::PmixUp::kFence:
      return OnFence(node, std::move(*up.mutable_fence()));
    case v1::PmixUp::kWanted:
      return OnWanted(node, up.wanted());
    case v1::PmixUp::kFound:
      return OnFound(node, std::move(*up.mutable_found()));
    case v1::PmixUp::kJoined:
      if (absl::Status own = CheckOwn(node, up.joined()); !own.ok()) return own;
      for (const uint32_t rank : up.joined().ranks()) {
        joined_ += ranks_[rank].joined ? 0 : 1;
        ranks_[rank].joined = true;
        ranks_[rank].left = false;
      }
      return std::vector<Send>();
    case v1::PmixUp::kLeft:
      if (absl::Status own = CheckOwn(node, up.left()); !own.ok()) return own;
      for (const uint32_t rank : up.left().ranks()) ranks_[rank].left = true;
      return std::vector<Send>();
    case v1::PmixUp::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message of an unknown kind");
}

absl::StatusOr<std::vector<size_t>> PmixCore::NodesOf(const Key& key) const {
  const bool ascending =
      std::adjacent_find(key.begin(), key.end(), std::greater_equal<>()) == key.end();
  if (!ascending || key.size() == ranks_.size()) {
    return absl::InvalidArgumentError("a fence with an invalid list of ranks");
  }
  std::vector<size_t> nodes;
  for (const uint32_t rank : key) {
    if (rank >= ranks_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("a fence with rank ", rank));
    }
    nodes.push_back(ranks_[rank].node);
  }
  if (key.empty()) {
    for (size_t i = 0; i < finished_.size(); ++i) nodes.push_back(i);
  }
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

bool PmixCore::Fence::awaits(size_t node) const {
  return std::binary_search(nodes.begin(), nodes.end(), node) && !entered.contains(node);
}

absl::StatusOr<std::vector<PmixCore::Send>> PmixCore::OnFence(size_t node, v1::PmixFence entering) {
  Key key(entering.ranks().begin(), entering.ranks().end());
  auto it = fences_.find(key);
  if (it == fences_.end()) {
    auto nodes = NodesOf(key);
    if (!nodes.ok()) return nodes.status();
    if (!std::binary_search(nodes->begin(), nodes->end(), node)) {
      return absl::InvalidArgumentError("a fence without a rank of its own");
    }
    if (fences_.size() >= kMostFences) {
      return absl::FailedPreconditionError(absl::StrCat(kMostFences, " fences at once"));
    }
    it = fences_.emplace(std::move(key), Fence()).first;
    it->second.nodes = *std::move(nodes);
  }
  Fence& fence = it->second;
  if (!fence.awaits(node)) {
    return absl::FailedPreconditionError("a fence that it is in already, or is not a part of");
  }
  fence.entered[node] = std::move(*entering.mutable_data());
  if (fence.status == 0) fence.status = entering.status();
  const auto gone = [&](size_t each) { return finished_[each] && fence.awaits(each); };
  const bool torn = std::any_of(fence.nodes.begin(), fence.nodes.end(), gone);
  if (torn) fence.status = kLost;
  std::vector<Send> out;
  if (torn || fence.entered.size() == fence.nodes.size()) {
    out.push_back(Complete(it->first, std::move(fence)));
    fences_.erase(it);
  }
  return out;
}

// In the order of nodes, so that all see the same, whoever came first.
PmixCore::Send PmixCore::Complete(const Key& key, Fence fence) {
  Send send;
  v1::PmixFenceDone& done = *send.down.mutable_fence_done();
  done.mutable_ranks()->Add(key.begin(), key.end());
  done.set_status(fence.status);
  for (const auto& [node, data] : fence.entered) {
    *done.mutable_data() += data;
    send.nodes.push_back(node);
  }
  return send;
}

PmixCore::Send PmixCore::NotFound(const Asked& asked) {
  v1::PmixDown down;
  down.mutable_found()->set_id(asked.id);
  down.mutable_found()->set_status(kNotFound);
  return {{asked.by}, std::move(down)};
}

absl::StatusOr<std::vector<PmixCore::Send>> PmixCore::OnWanted(size_t node,
                                                               const v1::PmixWanted& wanted) {
  if (wanted.rank() >= ranks_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("it asks for rank ", wanted.rank()));
  }
  const Asked asked{node, wanted.id(), ranks_[wanted.rank()].node};
  if (finished_[asked.of] || asked.of == node) return std::vector<Send>{NotFound(asked)};
  if (asking_[node] >= kMostAsked) {
    return absl::FailedPreconditionError(absl::StrCat("it asks ", kMostAsked, " times at once"));
  }
  ++asking_[node];
  asked_[next_] = asked;
  v1::PmixDown down;
  down.mutable_wanted()->set_id(next_++);
  down.mutable_wanted()->set_rank(wanted.rank());
  return std::vector<Send>{{{asked.of}, std::move(down)}};
}

absl::StatusOr<std::vector<PmixCore::Send>> PmixCore::OnFound(size_t node, v1::PmixFound found) {
  const auto it = asked_.find(found.id());
  if (it == asked_.end() || it->second.of != node) {
    return absl::FailedPreconditionError("an answer to a request that was never made");
  }
  const Asked asked = it->second;
  asked_.erase(it);
  --asking_[asked.by];
  if (finished_[asked.by]) return std::vector<Send>();
  v1::PmixDown down;
  *down.mutable_found() = std::move(found);
  down.mutable_found()->set_id(asked.id);
  return std::vector<Send>{{{asked.by}, std::move(down)}};
}

std::vector<PmixCore::Send> PmixCore::NodeFinished(size_t node) {
  std::vector<Send> out;
  if (finished_.at(node)) return out;
  finished_[node] = true;
  for (auto it = asked_.begin(); it != asked_.end();) {
    if (it->second.of != node) {
      ++it;
      continue;
    }
    --asking_[it->second.by];
    if (!finished_[it->second.by]) out.push_back(NotFound(it->second));
    it = asked_.erase(it);
  }
  for (auto it = fences_.begin(); it != fences_.end();) {
    if (!it->second.awaits(node)) {
      ++it;
      continue;
    }
    it->second.status = kLost;
    out.push_back(Complete(it->first, std::move(it->second)));
    it = fences_.erase(it);
  }
  return out;
}

bool PmixCore::is_awaited(size_t node) const {
  return std::any_of(fences_.begin(), fences_.end(),
                     [node](const auto& each) { return each.second.awaits(node); });
}

}  // namespace dtrain::rendezvous
