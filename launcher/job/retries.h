// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/job/cluster.h"
#include "launcher/job/fault_list.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {

// Hosts that cannot be reached yet for a reason that passes (NodeClosed::passes): each is tried
// again for JobOptions::retry_for. A host that has answered and is gone before it joined is one,
// too.
class Retries {
 public:
  Retries(Cluster& cluster, Out& out) : cluster_(cluster), out_(out), began_(cluster.size()) {}

  // A first try has begun. With a limit of its own (JobOptions::retry_each) its time runs from
  // then.
  void OnPhase(NodeId node);
  // `why`: of people; `passes`: in few words. False: its time is over.
  bool TryAgain(NodeId node, const std::string& why, const std::string& passes, int exit_code);
  // Its session begins, for which there is the lease.
  void OnConnected(NodeId node);
  // It has joined, or is not waited for any more.
  void Forget(NodeId node);

  bool any() const { return !waiting_.empty(); }
  bool Has(NodeId node) const { return waiting_.contains(node); }
  // Why those that are still tried could not be reached, for whoever tells what is wrong with all.
  void AddTo(FaultList& faults) const;
  // The same of one, with how long it was tried.
  std::string Why(NodeId node) const;
  int ExitCode(NodeId node) const { return waiting_.at(node).exit_code; }

  // Those whose time is over.
  std::vector<NodeId> Due() const;
  TimePoint NextDeadline() const;
  void OnDeadline();  // tells what is waited for, once of each host

 private:
  struct Waiting {
    std::string why;
    std::string passes;
    int exit_code = 0;
    int tries = 0;
    TimePoint until;
    bool told = false;
  };
  TimePoint Until(NodeId node) const;
  const char* flag() const;
  void Tell();

  Cluster& cluster_;
  Out& out_;
  std::vector<TimePoint> began_;  // by node; the epoch: it has not
  std::map<NodeId, Waiting> waiting_;
  std::set<std::pair<TimePoint, NodeId>> until_;
  TimePoint tell_at_ = kNever;
};

}  // namespace dtrain::job
