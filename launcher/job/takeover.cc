// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/takeover.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"

namespace dtrain::job {

void Takeover::Begin(const v1::AttemptRuns& runs) {
  lease_watch_.BeginUnheard();
  SetPlan(runs);
  const bool ran = runs.nodes_size() > 0;
  for (const plan::PlannedNode& each : cluster_.plan().nodes) {
    cluster_.SetConnected(each.node, true);
    cluster_.SetToldToStart(each.node);
    if (ran) cluster_.SetStarted(each.node);
    cluster_.SetWaitingFor(each.node, "the connection");
    lease_watch_.Watch(each.node, /*same_machine=*/false);
    if (ran) {
      out_.Add(OpenLogs{each.node});
    } else {
      stop_.DropLogs(each.node);  // nobody has seen it begin
    }
  }
  for (uint32_t i = 0; i < cluster_.size(); ++i) {
    // The launcher before us has let it go.
    const NodeId node(i);
    if (!cluster_.node(node).plan_index) cluster_.SetGone(node, /*let_go=*/true);
  }
  stall_watch_.BeginRetold();
  out_.Add(PlanReady{});
  if (ran) return run_.Begin();
  cluster_.Enter(State::kStarting);
  stop_.Stop({.kind = Verdict::Kind::kLauncher,
              .exit_code = kExitAgentLost,
              .message = "the launcher before this one ended before all workers ran",
              .rank = {},
              .signal = 0});
}

// Of an attempt that never ran nobody knows which hosts have work: any may.
void Takeover::SetPlan(const v1::AttemptRuns& runs) {
  plan::Plan plan;
  plan.world_size = runs.world_size();
  plan.universe_size = runs.universe_size();
  plan.process_mapping = runs.process_mapping();
  for (const v1::RunningNode& node : runs.nodes()) {
    const NodeId id(node.node());
    cluster_.SetInventory(id, node.inventory());
    plan.nodes.push_back({id,
                          cluster_.hosts().entries[id.value()],
                          node.slots(),
                          {node.workers().begin(), node.workers().end()}});
  }
  for (uint32_t i = 0; runs.nodes_size() == 0 && i < cluster_.size(); ++i) {
    plan.nodes.push_back({NodeId(i), cluster_.hosts().entries[i], 0, {}});
  }
  cluster_.SetPlan(std::move(plan));
  ranks_.Assign();
  for (const v1::RunningNode& node : runs.nodes()) {
    for (const v1::WorkerStarted& worker : node.started()) {
      ranks_.SetPid(worker.rank(), worker.pid());
    }
  }
}

absl::Status Takeover::OnStarted(const Event& event) {
  const ShepherdMessage& message = OfShepherd(event);
  if (cluster_.options().generation <= 1) return absl::InvalidArgumentError("Started twice");
  for (const v1::WorkerStarted& worker : message.event.started().workers()) {
    if (!ranks_.IsOf(worker.rank(), message.node) || ranks_.at(worker.rank()).pid != worker.pid()) {
      return absl::InvalidArgumentError(absl::StrCat("Started for rank ", worker.rank(),
                                                     " with another process than it had before"));
    }
  }
  return absl::OkStatus();
}

absl::Status Takeover::OnRetold(const Event& event) {
  const NodeId node = OfShepherd(event).node;
  if (cluster_.options().generation <= 1) return absl::InvalidArgumentError("Retold unasked");
  cluster_.SetWaitingFor(node, "");
  stall_watch_.OnRetold(node);
  if (!stall_watch_.retelling()) run_.OnAllRetold();
  return absl::OkStatus();
}

}  // namespace dtrain::job
