// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/start_phase.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {

void LetGoOfIdle(Cluster& cluster, StopPhase& stop) {
  for (uint32_t i = 0; i < cluster.size(); ++i) {
    const NodeId node(i);
    if (cluster.node(node).plan_index || cluster.view(node).gone) continue;
    if (cluster.options().keep_spares && cluster.view(node).joined) {
      cluster.SetSpare(node);
    } else {
      stop.LetGo(node);
    }
  }
}

void StartPhase::Begin(MeetingPoints points) {
  cluster_.Enter(State::kStarting);
  points_ = std::move(points);
  LetGoOfIdle(cluster_, stop_);
  out_.Add(PlanReady{});
  const auto& stage = cluster_.options().stage;
  if (stage == nullptr) return SendStarts();
  std::vector<NodeId> nodes;
  for (size_t i = 0; i < cluster_.plan().nodes.size(); ++i) {
    const NodeId node = cluster_.planned(i);
    nodes.push_back(node);
    cluster_.SetToldToStart(node);
    cluster_.SetWaitingFor(node, "its code");
    staging_[node.value()] = true;
    // How long it takes depends on the network and the code.
    SetPreparing(node, true);
  }
  staging_count_ = nodes.size();
  out_.ToShepherds(nodes, *stage);
  for (const NodeId node : nodes) out_.Add(OpenLogs{node});
}

void StartPhase::SendStarts() {
  const bool staged = cluster_.options().stage != nullptr;
  const PartMaker parts(cluster_, std::move(points_));
  const auto common = std::make_shared<const v1::JobPart>(parts.Common());
  for (size_t i = 0; i < cluster_.plan().nodes.size(); ++i) {
    const NodeId node = cluster_.planned(i);
    cluster_.SetToldToStart(node);
    cluster_.SetWaitingFor(node, "its workers to start");
    *out_.ToShepherd(node, common).mutable_start() = parts.OwnOf(i);
    if (!staged) out_.Add(OpenLogs{node});
  }
  stall_watch_.Begin();
}

absl::Status StartPhase::OnStageWord(const Event& event) {
  if (staging_[OfShepherd(event).node.value()]) return absl::OkStatus();
  return absl::InvalidArgumentError("StageMissing or StageTaken unasked");
}

// None starts before all have it.
absl::Status StartPhase::OnStaged(const Event& event) {
  const ShepherdMessage& message = OfShepherd(event);
  if (!staging_[message.node.value()]) return absl::InvalidArgumentError("Staged unasked");
  if (message.event.staged().sha256() != cluster_.options().stage->stage().sha256()) {
    return absl::InvalidArgumentError("Staged of another tree");
  }
  staging_[message.node.value()] = false;
  cluster_.SetWaitingFor(message.node, "");
  SetPreparing(message.node, false);
  if (--staging_count_ == 0) SendStarts();
  return absl::OkStatus();
}

// How long an image takes to arrive says nothing of whether the start hangs: its time runs again,
// from the beginning, when all nodes have theirs.
void StartPhase::SetPreparing(NodeId node, bool is_preparing) {
  if (preparing_[node.value()] == is_preparing) return;
  preparing_[node.value()] = is_preparing;
  preparing_count_ += is_preparing ? 1 : -1;
  if (preparing_count_ > 0) {
    start_limit_.Suspend();
  } else {
    start_limit_.Restart();
  }
}

absl::Status StartPhase::OnPreparing(const Event& event) {
  const ShepherdMessage& message = OfShepherd(event);
  if (cluster_.node(message.node).started) {
    return absl::InvalidArgumentError("Preparing when it had started");
  }
  if (staging_count_ > 0) return absl::InvalidArgumentError("Preparing before its start");
  const std::string& what = message.event.preparing().what();
  cluster_.SetWaitingFor(message.node, what.empty() ? "its workers to start" : Printable(what));
  SetPreparing(message.node, !what.empty());
  return absl::OkStatus();
}

absl::Status StartPhase::OnStarted(const Event& event) {
  const ShepherdMessage& message = OfShepherd(event);
  const v1::Started& started = message.event.started();
  if (cluster_.node(message.node).started) return absl::InvalidArgumentError("Started twice");
  if (staging_count_ > 0) return absl::InvalidArgumentError("Started before its start");
  std::set<uint32_t> seen;
  for (const v1::WorkerStarted& worker : started.workers()) {
    if (!ranks_.IsOf(worker.rank(), message.node) || !seen.insert(worker.rank()).second) {
      return absl::InvalidArgumentError(absl::StrCat("Started for rank ", worker.rank()));
    }
  }
  for (const v1::WorkerStarted& worker : started.workers()) {
    ranks_.SetPid(worker.rank(), worker.pid());
  }
  cluster_.SetStarted(message.node);
  SetPreparing(message.node, false);
  cluster_.SetWaitingFor(message.node, "");
  if (++started_count_ == cluster_.plan().nodes.size()) run_.Begin();
  return absl::OkStatus();
}

}  // namespace dtrain::job
