// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/job/cluster.h"
#include "launcher/job/early_faults.h"
#include "launcher/job/fault_list.h"
#include "launcher/job/outcome.h"
#include "launcher/job/start_limit.h"
#include "launcher/job/stop_phase.h"

namespace dtrain::job {

// What several jobs on a node have of it: what ours needs is reserved on all nodes before anything
// starts there, and with --wait, what others have is waited for.
class ReservePhase {
 public:
  ReservePhase(Cluster& cluster, Out& out, const EarlyFaults& early_faults, StartLimit& start_limit,
               StopPhase& stop)
      : cluster_(cluster),
        out_(out),
        early_faults_(early_faults),
        start_limit_(start_limit),
        stop_(stop),
        reserved_(cluster.size()),
        spare_owes_(cluster.size()) {}

  void Begin();  // answered while addresses are proven
  absl::Status OnReserved(const AgentMessage& message);
  bool all_answered() const { return due_ == 0; }
  // Once all have answered: whether others were faster. If so that is dealt with.
  bool IsRefused();

  // Other jobs have what we need: the launch ends, or waits in kConnecting until all was looked at
  // again and a plan is found.
  void Busy(std::string why);
  absl::Status OnInventory(const AgentMessage& message);
  bool all_looked() const { return looks_due_ == 0; }
  void StopWaiting();  // a plan was found

  TimePoint NextDeadline() const;
  void OnDeadline();

 private:
  void ReserveSpare(NodeId node);
  void TellUnreserved(NodeId node, absl::string_view why);
  void LookAgain();
  void WaitTimedOut();
  TimePoint LookAt() const;

  Cluster& cluster_;
  Out& out_;
  const EarlyFaults& early_faults_;
  StartLimit& start_limit_;
  StopPhase& stop_;
  std::vector<bool> reserved_;    // by node: what we asked for is ours there, or will be
  std::vector<bool> spare_owes_;  // by node: a Reserved, for which nothing waits
  size_t due_ = 0;                // nodes of the plan that owe a Reserved
  FaultList refusals_;            // of this round
  size_t looks_due_ = 0;          // nodes that owe an Inventory
  bool is_waiting_ = false;
  std::string busy_;  // why, as last told
  TimePoint look_again_at_ = kNever;
  TimePoint wait_until_ = kNever;
};

}  // namespace dtrain::job
