// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/out.h"

namespace dtrain::job {
namespace {

// Kept for the result file; more than a person reads.
constexpr size_t kMostWarnings = 1000;

}  // namespace

v1::SessionRequest& Out::ToAgent(NodeId node) {
  actions_.emplace_back(job::ToAgent{node, {}});
  return std::get<job::ToAgent>(actions_.back()).request;
}

v1::JobRequest& Out::ToShepherd(NodeId node, std::shared_ptr<const v1::JobPart> common) {
  actions_.emplace_back(job::ToShepherd{node, {}, std::move(common)});
  return std::get<job::ToShepherd>(actions_.back()).request;
}

void Out::ToAgents(std::vector<NodeId> nodes, v1::SessionRequest request) {
  if (nodes.empty()) return;
  actions_.emplace_back(job::ToAgents{std::move(nodes), std::move(request)});
}

void Out::ToShepherds(std::vector<NodeId> nodes, v1::JobRequest request) {
  if (nodes.empty()) return;
  actions_.emplace_back(job::ToShepherds{std::move(nodes), std::move(request)});
}

void Out::Warn(std::string text, bool detail) {
  if (warnings_.size() < kMostWarnings) warnings_.push_back(text);
  actions_.emplace_back(job::Warn{std::move(text), detail});
}

}  // namespace dtrain::job
