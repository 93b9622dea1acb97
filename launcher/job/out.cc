// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/out.h"

namespace dtrain::job {
namespace {

// Kept for the result file; more than a person reads.
constexpr size_t kMostWarnings = 1000;

}  // namespace

v1::SessionRequest& Out::SendTo(NodeId node) {
  actions_.emplace_back(Send{node, {}});
  return std::get<Send>(actions_.back()).request;
}

void Out::SendToMany(std::vector<NodeId> nodes, v1::SessionRequest request) {
  if (nodes.empty()) return;
  actions_.emplace_back(SendMany{std::move(nodes), std::move(request)});
}

void Out::Warn(std::string text, bool detail) {
  if (warnings_.size() < kMostWarnings) warnings_.push_back(text);
  actions_.emplace_back(job::Warn{std::move(text), detail});
}

}  // namespace dtrain::job
