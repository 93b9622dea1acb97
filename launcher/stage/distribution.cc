// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/distribution.h"

#include <algorithm>
#include <utility>

namespace dtrain::stage {

Distribution::Distribution(const std::vector<manifest::File>& files,
                           const std::vector<NodeId>& nodes)
    : files_(files) {
  for (const NodeId node : nodes) nodes_[node.value()];
}

Distribution::Node* Distribution::Find(NodeId node) {
  const auto found = nodes_.find(node.value());
  return found == nodes_.end() ? nullptr : &found->second;
}

void Distribution::Answered(Node& node) {
  if (std::exchange(node.answered, true)) return;
  ++answered_;
  if (answered_ < nodes_.size()) return;
  for (Wanted& wanted : wanted_) std::sort(wanted.nodes.begin(), wanted.nodes.end());
  std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) {
    return a.nodes != b.nodes ? a.nodes < b.nodes : a.file < b.file;
  });
}

absl::Status Distribution::OnMissing(NodeId id, const std::vector<uint32_t>& files) {
  Node* const node = Find(id);
  if (node == nullptr || node->answered) return absl::InvalidArgumentError("StageMissing unasked");
  for (size_t i = 0; i < files.size(); ++i) {
    const bool rises = i == 0 || files[i - 1] < files[i];
    if (!rises || files[i] >= files_.size() || files_[files[i]].size == 0 ||
        files_[files[i]].kind == manifest::File::Kind::kLink) {
      return absl::InvalidArgumentError("StageMissing of what is not to be sent");
    }
  }
  node->lacks = true;
  // Both are sorted by file until all have answered.
  std::vector<Wanted> merged;
  auto old = wanted_.begin();
  for (const uint32_t file : files) {
    while (old != wanted_.end() && old->file < file) merged.push_back(std::move(*old++));
    if (old != wanted_.end() && old->file == file) {
      merged.push_back(std::move(*old++));
    } else {
      merged.push_back({file, {}});
    }
    merged.back().nodes.push_back(id);
  }
  std::move(old, wanted_.end(), std::back_inserter(merged));
  wanted_ = std::move(merged);
  Answered(*node);
  return absl::OkStatus();
}

absl::Status Distribution::OnTaken(NodeId id, uint32_t messages) {
  Node* const node = Find(id);
  if (node == nullptr || messages > node->untaken) {
    return absl::InvalidArgumentError("StageTaken of what was not sent");
  }
  node->untaken -= messages;
  return absl::OkStatus();
}

absl::Status Distribution::OnStaged(NodeId id) {
  Node* const node = Find(id);
  if (node == nullptr || node->staged) return absl::InvalidArgumentError("Staged unasked");
  node->staged = true;
  ++staged_;
  Answered(*node);
  return absl::OkStatus();
}

bool Distribution::MayHave(const std::vector<NodeId>& nodes) const {
  return std::all_of(nodes.begin(), nodes.end(), [this](NodeId node) {
    return nodes_.find(node.value())->second.untaken < kAhead;
  });
}

std::optional<Distribution::Message> Distribution::Next() {
  if (answered_ < nodes_.size() || next_ == wanted_.size() || !MayHave(wanted_[next_].nodes)) {
    return std::nullopt;
  }
  Message message;
  message.nodes = wanted_[next_].nodes;
  for (const NodeId node : message.nodes) ++Find(node)->untaken;
  size_t left = kMostData;
  while (left > 0 && next_ < wanted_.size() && wanted_[next_].nodes == message.nodes) {
    const uint32_t file = wanted_[next_].file;
    const auto size = static_cast<size_t>(std::min<uint64_t>(left, files_[file].size - offset_));
    message.pieces.push_back({file, offset_, size});
    left -= size;
    offset_ += size;
    if (offset_ < files_[file].size) break;
    offset_ = 0;
    ++next_;
  }
  return message;
}

size_t Distribution::nodes_sent_to() const {
  return static_cast<size_t>(std::count_if(nodes_.begin(), nodes_.end(),
                                           [](const auto& node) { return node.second.lacks; }));
}

}  // namespace dtrain::stage
