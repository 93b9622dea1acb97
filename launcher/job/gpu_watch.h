// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "launcher/job/cluster.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {

// What the job's GPUs have reported while the attempt ran. It ends nothing: programs often go on,
// and if they do not, that is seen.
class GpuWatch {
 public:
  GpuWatch(const Cluster& cluster, Out& out) : cluster_(cluster), out_(out) {}

  void OnStates(const Event& event);
  // In the order in which they were heard of.
  const std::vector<GpuFault>& faults() const { return faults_; }

 private:
  // One GPU's, of each kind.
  struct Known {
    std::map<uint32_t, bool> xids;
    size_t ecc = 0;  // 1 + its place in faults_; 0: none yet
    bool fault = false;
  };
  void OnState(NodeId node, const v1::GpuState& state);
  void Add(GpuFault fault);

  const Cluster& cluster_;
  Out& out_;
  std::map<std::pair<uint32_t, std::string>, Known> known_;  // by node and uuid
  std::vector<GpuFault> faults_;
};

// Of GPUs with errors, these alone; empty when there are none.
v1::GpuStates ErrorsOf(const v1::GpuStates& states);

}  // namespace dtrain::job
