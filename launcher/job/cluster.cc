// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/cluster.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace dtrain::job {

std::vector<NodeId> Seated(const std::vector<NodeId>& present,
                           const std::vector<std::optional<NodeId>>& seats) {
  std::vector<NodeId> coming;
  std::copy_if(present.begin(), present.end(), std::back_inserter(coming), [&seats](NodeId node) {
    return std::find(seats.begin(), seats.end(), node) == seats.end();
  });
  std::vector<NodeId> seated;
  auto next = coming.begin();
  for (const std::optional<NodeId>& seat : seats) {
    if (seat && std::find(present.begin(), present.end(), *seat) != present.end()) {
      seated.push_back(*seat);
    } else if (next != coming.end()) {
      seated.push_back(*next++);
    }
  }
  seated.insert(seated.end(), next, coming.end());
  return seated;
}

Cluster::Cluster(hosts::HostList hosts, JobOptions options, TimePoint begin)
    : hosts_(std::move(hosts)),
      options_(std::move(options)),
      now_(begin),
      views_(hosts_.entries.size()),
      nodes_(hosts_.entries.size()),
      phases_({{State::kConnecting, begin, kNever}}),
      held_(nodes_.size()) {
  for (size_t i = 0; i < views_.size(); ++i) {
    views_[i].host = hosts_.entries[i].host;
    views_[i].waiting_for = "connection";
  }
}

std::vector<NodeId> Cluster::PlannedWithWork() const {
  std::vector<NodeId> there;
  for (const plan::PlannedNode& each : plan_.nodes) {
    if (has_work(each.node)) there.push_back(each.node);
  }
  return there;
}

std::vector<NodeId> Cluster::PlannedHeld() const {
  std::vector<NodeId> held;
  for (const plan::PlannedNode& each : plan_.nodes) {
    if (is_held(each.node)) held.push_back(each.node);
  }
  return held;
}

void Cluster::Advance(TimePoint now) { now_ = std::max(now_, now); }

void Cluster::Enter(State next) {
  phases_.back().end = now_;
  phases_.push_back({next, now_, next == State::kFinished ? now_ : kNever});
}

void Cluster::SetInventory(NodeId node, v1::Inventory inventory) {
  views_[node.value()].joined = true;
  views_[node.value()].inventory = std::move(inventory);
}

void Cluster::SetWaitingFor(NodeId node, std::string what) {
  views_[node.value()].waiting_for = std::move(what);
}

void Cluster::SetClock(NodeId node, int64_t ahead_nanos, int64_t ahead_at_start_nanos) {
  views_[node.value()].clock_ahead_nanos = ahead_nanos;
  views_[node.value()].clock_ahead_at_start_nanos = ahead_at_start_nanos;
}

void Cluster::SetPlan(plan::Plan plan) {
  plan_ = std::move(plan);
  for (Node& node : nodes_) node.plan_index.reset();
  for (NodeView& view : views_) view.spare = false;
  for (uint32_t i = 0; i < plan_.nodes.size(); ++i) {
    At(plan_.nodes[i].node).plan_index = i;
    for (const v1::WorkerSpec& worker : plan_.nodes[i].workers) {
      if (worker.rank() == 0) master_ = i;
    }
  }
}

void Cluster::SetEnded(NodeId node) {
  const bool was_held = is_held(node);
  At(node).ended = true;
  if (was_held && !is_held(node)) --held_;
}

void Cluster::SetReleased(NodeId node) {
  const bool was_held = is_held(node);
  At(node).released = true;
  if (was_held && !is_held(node)) --held_;
}

void Cluster::SetGone(NodeId node, bool let_go) {
  NodeView& view = views_[node.value()];
  view.waiting_for.clear();
  if (view.gone) return;
  if (is_held(node)) --held_;
  view.gone = true;
  view.let_go = let_go;
  ++gone_;
}

uint32_t ToMs(Duration duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(ms, 0, UINT32_MAX));
}

TimePoint After(TimePoint begin, Duration duration) {
  if (duration <= Duration::zero()) return kNever;
  return duration < kNever - begin ? begin + duration : kNever;
}

NodeId SenderOf(const Event& event) {
  const auto* agent = std::get_if<AgentMessage>(&event);
  return agent != nullptr ? agent->node : OfShepherd(event).node;
}

const v1::NodeFailure& FailureOf(const Event& event) {
  const auto* agent = std::get_if<AgentMessage>(&event);
  return agent != nullptr ? agent->event.failure() : OfShepherd(event).event.failure();
}

const v1::Warning& WarningOf(const Event& event) {
  const auto* agent = std::get_if<AgentMessage>(&event);
  return agent != nullptr ? agent->event.warning() : OfShepherd(event).event.warning();
}

}  // namespace dtrain::job
