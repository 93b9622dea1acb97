// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/start_phase.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {

void LetGoOfIdle(const Cluster& cluster, StopPhase& stop) {
  for (uint32_t i = 0; i < cluster.size(); ++i) {
    if (!cluster.node(NodeId(i)).plan_index) stop.LetGo(NodeId(i));
  }
}

void StartPhase::Begin(MeetingPoints points) {
  cluster_.Enter(State::kStarting);
  const PartMaker parts(cluster_, std::move(points));
  const auto common = std::make_shared<const v1::JobPart>(parts.Common());
  LetGoOfIdle(cluster_, stop_);
  out_.Add(PlanReady{});
  for (size_t i = 0; i < cluster_.plan().nodes.size(); ++i) {
    const NodeId node = cluster_.planned(i);
    cluster_.SetToldToStart(node);
    cluster_.SetWaitingFor(node, "its workers to start");
    *out_.ToShepherd(node, common).mutable_start() = parts.OwnOf(i);
    out_.Add(OpenLogs{node});
  }
  stall_watch_.Begin();
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
  const std::string& what = message.event.preparing().what();
  cluster_.SetWaitingFor(message.node, what.empty() ? "its workers to start" : Printable(what));
  SetPreparing(message.node, !what.empty());
  return absl::OkStatus();
}

absl::Status StartPhase::OnStarted(const Event& event) {
  const ShepherdMessage& message = OfShepherd(event);
  const v1::Started& started = message.event.started();
  if (cluster_.node(message.node).started) return absl::InvalidArgumentError("Started twice");
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
