// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::rendezvous {

// The fences of one attempt: each node enters once per sequence number, and when all have, all are
// released with what all put. Pure. Nodes are indices 0..n-1.
class FenceCore {
 public:
  // `first`: the number of the first fence, of an attempt that had some before.
  explicit FenceCore(std::vector<std::string> hosts, uint32_t first = 0);

  // The release for all nodes when this was the last to enter. Fails, changing nothing, and names
  // the node, when it is not at the present fence, enters twice, or has finished.
  absl::StatusOr<std::optional<v1::FenceRelease>> Enter(size_t node, v1::FenceEnter enter);

  // This node enters no fence any more.
  void NodeFinished(size_t node);

  uint32_t sequence() const { return sequence_; }  // of the present fence
  bool in_progress() const { return entered_ > 0; }
  bool has_entered(size_t node) const { return members_[node].entered; }
  // True when some node waits in the present fence and another has finished without entering.
  bool cannot_complete() const { return entered_ > 0 && finished_outside_ > 0; }

 private:
  struct Member {
    std::string host;
    bool entered = false;
    bool finished = false;
    v1::FenceEnter enter;
  };
  std::vector<Member> members_;
  uint32_t sequence_ = 0;
  size_t entered_ = 0;
  size_t finished_outside_ = 0;  // finished, not in the present fence
};

}  // namespace dtrain::rendezvous
