// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "launcher/job/job_core.h"

namespace dtrain::job {

// The nodes that are there, in the order of the node ranks that they get. `seats`: who had each
// node rank in the attempt before; none: a host that this attempt does not have. A node that is
// still there keeps its place, as what its ranks have in caches and on its disks is theirs; one
// that comes in takes the place of one that is gone. Pure.
std::vector<NodeId> Seated(const std::vector<NodeId>& present,
                           const std::vector<std::optional<NodeId>>& seats);

// The launch as all its phases see it: what was asked for, what time it is, in which state the job
// is, its nodes and its plan. Phases read it; each of the methods that change it says for whom.
class Cluster {
 public:
  struct Node {
    bool connected = false;  // a session stands, Hello was sent
    bool told_to_start = false;
    bool started = false;
    bool ended = false;     // no worker lives there
    bool released = false;  // nor has the job anything else there
    std::optional<uint32_t> plan_index;
    std::string reached{};  // its address, as its connection has it; empty: not known
  };

  Cluster(hosts::HostList hosts, JobOptions options, TimePoint begin);

  const hosts::HostList& hosts() const { return hosts_; }
  const JobOptions& options() const { return options_; }
  TimePoint now() const { return now_; }
  State state() const { return phases_.back().state; }
  const std::vector<PhaseTime>& phases() const { return phases_; }
  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()); }
  const std::vector<NodeView>& views() const { return views_; }
  const NodeView& view(NodeId node) const { return views_[node.value()]; }
  const Node& node(NodeId node) const { return nodes_[node.value()]; }
  const std::string& host(NodeId node) const { return views_[node.value()].host; }
  // Of the plan, which exists from kProbing on, or once a dry run has it.
  const plan::Plan& plan() const { return plan_; }
  NodeId planned(size_t plan_index) const { return plan_.nodes[plan_index].node; }
  size_t master() const { return master_; }     // rank 0's node, as an index of the plan
  std::vector<NodeId> PlannedWithWork() const;  // those of the plan where workers may live
  bool has_work(NodeId node) const { return !view(node).gone && !this->node(node).ended; }
  // Those of the plan that others may not have yet: their workers may live, or their GPUs be held.
  std::vector<NodeId> PlannedHeld() const;
  bool is_held(NodeId node) const { return !view(node).gone && !is_free(this->node(node)); }
  bool is_spare(NodeId node) const { return view(node).spare; }
  bool any_held() const { return held_ > 0; }
  bool all_gone() const { return gone_ == nodes_.size(); }

  // For JobCore. Time does not go back.
  void Advance(TimePoint now);
  // For the phase that begins, or ends, with it.
  void Enter(State next);
  // For JoinPhase.
  void SetConnected(NodeId node, bool connected) { At(node).connected = connected; }
  void SetReached(NodeId node, std::string address) { At(node).reached = std::move(address); }
  // For JoinPhase and ReservePhase: the first, and what is free by now.
  void SetInventory(NodeId node, v1::Inventory inventory);
  // For whoever asks a node for something. "": for nothing more.
  void SetWaitingFor(NodeId node, std::string what);
  // For LeaseWatch.
  void SetSuspect(NodeId node, bool suspect) { views_[node.value()].suspect = suspect; }
  void SetResumable(NodeId node) { views_[node.value()].resumable = true; }
  void SetClock(NodeId node, int64_t ahead_nanos, int64_t ahead_at_start_nanos);
  // For PlanPhase.
  void SetPlan(plan::Plan plan);
  void SetSpare(NodeId node) { views_[node.value()].spare = true; }
  // For StartPhase.
  void SetToldToStart(NodeId node) { At(node).told_to_start = true; }
  void SetStarted(NodeId node) { At(node).started = true; }
  // For RunPhase and StopPhase.
  void SetEnded(NodeId node);
  void SetReleased(NodeId node);
  void SetGone(NodeId node, bool let_go);

 private:
  static bool is_free(const Node& node) { return node.ended && node.released; }
  Node& At(NodeId node) { return nodes_[node.value()]; }

  const hosts::HostList hosts_;
  const JobOptions options_;
  TimePoint now_;
  std::vector<NodeView> views_;
  std::vector<Node> nodes_;
  std::vector<PhaseTime> phases_;
  plan::Plan plan_;
  size_t master_ = 0;
  size_t gone_ = 0;
  size_t held_;
};

// `begin + duration` without overflow; never when the duration is zero.
TimePoint After(TimePoint begin, Duration duration);

// As messages have it; what they cannot say becomes the nearest that they can.
uint32_t ToMs(Duration duration);

// Whose message it is the table has checked.
inline const AgentMessage& OfAgent(const Event& event) { return std::get<AgentMessage>(event); }
inline const ShepherdMessage& OfShepherd(const Event& event) {
  return std::get<ShepherdMessage>(event);
}
// What either may say.
NodeId SenderOf(const Event& event);
const v1::NodeFailure& FailureOf(const Event& event);
const v1::Warning& WarningOf(const Event& event);

}  // namespace dtrain::job
