// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "dtrain/v1/agent.pb.h"
#include "launcher/job/job_core.h"
#include "launcher/output/router.h"
#include "launcher/status/log_tails.h"

namespace dtrain {

// What the workers of a launch write, from the nodes to the router, and to the tails that are kept
// for queries. Loop thread.
class NodeOutput {
 public:
  // All outlive it; `tails` null: nobody can ask. `first`: what the number of its rank 0 is in the
  // launch.
  NodeOutput(const job::JobCore& core, output::OutputRouter& router, status::LogTails* tails,
             uint32_t first);

  // An agent speaks for the workers of its own node.
  bool IsOn(NodeId id, uint32_t rank) const;
  // An error: it is no output of a worker there.
  absl::Status Check(NodeId id, const v1::LogChunk& chunk) const;
  // What Check has passed.
  void Deliver(NodeId id, v1::LogChunk chunk);
  // No more comes for a while, whatever they write.
  void OnCut(NodeId id);
  // Its workers have ended, their streams so long.
  void OnFinished(NodeId id, v1::Finished finished);
  // Every byte is here; perhaps before it is known that the workers have ended.
  void OnDelivered(NodeId id);

 private:
  struct Node {
    v1::Finished finished;
    bool delivered = false;
  };

  void EndStreams(NodeId id);
  Rank InLaunch(uint32_t rank) const { return Rank(first_ + rank); }

  const job::JobCore& core_;
  output::OutputRouter& router_;
  status::LogTails* const tails_;
  const uint32_t first_;
  std::vector<Node> nodes_;
};

}  // namespace dtrain
