// SPDX-License-Identifier: Apache-2.0
// What the job decides, carried out.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/runner.h"

namespace dtrain {
namespace {

// When nobody takes the output each link holds a piece of it: together so much at most, or the
// least that is worth a message.
constexpr size_t kMostOfAllLinks = 4 << 20;
constexpr size_t kLeastOfOne = 16 << 10;

uint32_t MostLogData(size_t nodes) {
  return static_cast<uint32_t>(std::max(kMostOfAllLinks / std::max(nodes, size_t{1}), kLeastOfOne));
}

}  // namespace

void Runner::Do(job::Action& action) {
  if (auto* send = std::get_if<job::ToAgent>(&action)) {
    Node& node = *nodes_[send->node.value()];
    node.said_goodbye = node.said_goodbye || send->request.has_goodbye();
    if (send->request.has_hello()) {
      if (node.link != nullptr) node.link->SayHello(send->request.hello());
      return;
    }
    ToNode(send->node, SharedRequest(send->request));
  } else if (auto* agents = std::get_if<job::ToAgents>(&action)) {
    const SharedRequest request(agents->request);
    for (NodeId id : agents->nodes) ToNode(id, request);
  } else if (auto* start = std::get_if<job::ToShepherd>(&action)) {
    if (start->common != nullptr) ToNode(start->node, CommonBytes(start->common));
    ToNode(start->node, SharedRequest(start->request));
  } else if (auto* shepherds = std::get_if<job::ToShepherds>(&action)) {
    const SharedRequest request(shepherds->request);
    for (NodeId id : shepherds->nodes) ToNode(id, request);
  } else if (auto* beat = std::get_if<job::Beat>(&action)) {
    for (NodeId id : beat->nodes) {
      if (nodes_[id.value()]->link != nullptr) nodes_[id.value()]->link->Beat(beat_);
    }
  } else if (auto* logs = std::get_if<job::OpenLogs>(&action)) {
    nodes_[logs->node.value()]->link->OpenLogs(options_.job.job_id, options_.job.attempt,
                                               MostLogData(nodes_.size()));
  } else if (auto* disconnect = std::get_if<job::Disconnect>(&action)) {
    Disconnect(disconnect->node);
  } else if (auto* dial = std::get_if<job::DialAnew>(&action)) {
    if (nodes_[dial->node.value()]->link != nullptr) nodes_[dial->node.value()]->link->DialAnew();
  } else if (auto* warn = std::get_if<job::Warn>(&action)) {
    if (warn->detail && !options_.verbose) {
      details_.push_back(std::move(warn->text));
    } else {
      Warn(warn->text);
    }
  } else if (std::holds_alternative<job::PlanReady>(action)) {
    OnPlan();
  } else if (std::holds_alternative<job::Finish>(action)) {
    OnFinish();
  }
}

const SharedRequest& Runner::CommonBytes(const std::shared_ptr<const v1::JobPart>& common) {
  if (common != common_) {
    common_ = common;
    v1::JobRequest request;
    *request.mutable_common() = *common;
    common_bytes_.emplace(request);
  }
  return *common_bytes_;
}

// What is kept for all nodes has a limit. When it is reached, the node for which most is kept is
// the one that does not read.
void Runner::ToNode(NodeId id, const SharedRequest& request) {
  const auto kept = [](const std::unique_ptr<Node>& node) {
    return node->link != nullptr ? node->link->kept_bytes() : 0;
  };
  while (nodes_[id.value()]->link != nullptr) {
    const absl::Status sent = nodes_[id.value()]->link->Send(request);
    if (sent.ok()) return;
    Node& slowest =
        **std::max_element(nodes_.begin(), nodes_.end(),
                           [&](const auto& a, const auto& b) { return kept(a) < kept(b); });
    if (slowest.link == nullptr || slowest.link->kept_bytes() == 0) {
      return nodes_[id.value()]->link->GiveUp(
          absl::ResourceExhaustedError(std::string(sent.message())));
    }
    slowest.link->GiveUp(absl::ResourceExhaustedError(
        absl::StrCat("its agent or shepherd has not acknowledged ", slowest.link->kept_bytes(),
                     " bytes, and ", sent.message())));
  }
}

}  // namespace dtrain
