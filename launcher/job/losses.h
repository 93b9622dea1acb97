// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "launcher/job/cluster.h"
#include "launcher/job/lease_watch.h"
#include "launcher/job/outcome.h"
#include "launcher/job/own_pauses.h"
#include "launcher/job/rank_table.h"
#include "launcher/job/stop_phase.h"

namespace dtrain::job {

// The agent's own word: it has let a silent launcher go, or does not know of the job any more.
bool HasGivenUsUp(const NodeClosed& closed);

// Nothing is wrong: somebody has asked the agent for the job's end.
bool IsStop(const v1::NodeFailure& failure);

// Nothing is wrong: the node is to go away, and says so before it does.
bool IsLeaving(const v1::NodeFailure& failure);

// Nodes that fail, or are lost, once the job was told to start. Until then they are JoinPhase's.
class Losses {
 public:
  Losses(const Cluster& cluster, Out& out, const RankTable& ranks, const LeaseWatch& lease_watch,
         StopPhase& stop, OwnPauses& own_pauses)
      : cluster_(cluster),
        out_(out),
        ranks_(ranks),
        lease_watch_(lease_watch),
        stop_(stop),
        own_pauses_(own_pauses) {}

  void OnClosed(const Event& event);
  void OnFailure(const Event& event);
  void OnSilent(NodeId node, const std::string& why);
  void OnShepherdSilent(NodeId node, Duration silence);
  // Its agent has ended a worker without being asked to.
  void OnEndedUnasked(NodeId node);
  // Somebody has stopped the job by that node's agent: `text` says who. Before the start, too.
  void OnStopAsked(NodeId node, std::string text);
  // "node2: the job was stopped here by alice", of one that came while the attempt was ending for
  // another reason. Empty: none has.
  const std::string& stopped() const { return stopped_; }
  // Anything else that is wrong with it.
  void Fault(NodeId node, std::string text, int exit_code);
  // Before the start, too: the job does not need it.
  void LoseSpare(NodeId node, const std::string& why, bool is_closed = false);

 private:
  void LoseConnection(const NodeClosed& closed, const std::string& why, int exit_code);
  void Lose(NodeId node, std::string text, int exit_code, bool absent);
  // True until all workers have run, if no rank has ended: one that has must not run twice.
  bool IsBeforeRun() const;
  Cause FaultOf(NodeId node, std::string text, int exit_code) const;

  const Cluster& cluster_;
  Out& out_;
  const RankTable& ranks_;
  const LeaseWatch& lease_watch_;
  StopPhase& stop_;
  OwnPauses& own_pauses_;
  std::string stopped_;
};

}  // namespace dtrain::job
