// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/job/cluster.h"
#include "launcher/job/fault_list.h"
#include "launcher/job/outcome.h"
#include "launcher/job/retries.h"
#include "launcher/job/stop_phase.h"

namespace dtrain::job {

// What is wrong with nodes before anything runs. Several bad hosts are listed in one message: the
// job ends when all nodes have joined or failed, or no more has gone wrong for a while.
class EarlyFaults {
 public:
  EarlyFaults(const Cluster& cluster, Out& out, const Retries& retries, StopPhase& stop)
      : cluster_(cluster), out_(out), retries_(retries), stop_(stop), failed_(cluster.size()) {}

  bool any() const { return !faults_.empty(); }
  bool has_failed(NodeId node) const { return failed_[node.value()]; }
  size_t never_joined() const { return never_joined_; }  // of those that failed
  std::string Text(const std::string& heading) const { return faults_.Text(heading, cluster_); }

  void SetFailed(NodeId node);  // once for each; one of the next two follows
  // `absent`: see Verdict.
  void Add(NodeId node, std::string text, int exit_code, bool absent = false);
  void LeaveOut(NodeId node, std::string text, int exit_code);
  void TellLeftOut();
  void Conclude();  // ends the job

  TimePoint NextDeadline() const;
  void OnDeadline();

 private:
  const Cluster& cluster_;
  Out& out_;
  const Retries& retries_;
  StopPhase& stop_;
  std::vector<bool> failed_;  // by node
  size_t never_joined_ = 0;
  FaultList faults_;
  bool all_absent_ = true;
  FaultList left_out_;  // of hosts that the job can do without
  TimePoint settle_at_ = kNever;
  TimePoint settle_by_ = kNever;
};

}  // namespace dtrain::job
