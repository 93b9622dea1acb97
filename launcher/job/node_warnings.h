// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/job/cluster.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {

// What nodes warn of. All nodes of a job meet the same lack within moments: what several say is
// one line.
class NodeWarnings {
 public:
  NodeWarnings(const Cluster& cluster, Out& out) : cluster_(cluster), out_(out) {}

  void OnWarning(const Event& event);
  void Tell();  // what is not told yet

  TimePoint NextDeadline() const { return tell_at_; }
  void OnDeadline();

 private:
  const Cluster& cluster_;
  Out& out_;
  std::vector<std::pair<NodeId, std::string>> waiting_;
  std::set<std::string> details_;  // texts among them, and told ones, that are details
  TimePoint tell_at_ = kNever;
};

}  // namespace dtrain::job
