// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtrain/v1/pmix.pb.h"

namespace dtrain::rendezvous {

// What the PMIx servers of a job's nodes exchange: fences, each of a set of ranks, any number at a
// time, and what one rank has put and another asks for. Pure. Nodes are indices 0..n-1.
class PmixCore {
 public:
  // Of the job as MPI sees it; its nodes' ranks are 0..world size - 1, each once.
  explicit PmixCore(v1::PmixJob job);

  struct Send {
    std::vector<size_t> nodes;
    v1::PmixDown down;
  };
  // INVALID_ARGUMENT, FAILED_PRECONDITION: what a server must not say; nothing has changed then.
  absl::StatusOr<std::vector<Send>> OnUp(size_t node, v1::PmixUp up);
  // This node's workers have all ended: it answers no more, and enters no fence.
  std::vector<Send> NodeFinished(size_t node);

  // Ranks that joined, and of those the ones that have left again.
  size_t joined() const { return joined_; }
  bool has_joined(uint32_t rank) const { return ranks_[rank].joined; }
  bool has_left(uint32_t rank) const { return ranks_[rank].left; }

  // A node's ranks wait in a fence for other nodes.
  bool in_progress() const { return !fences_.empty(); }
  // Whether such a fence waits for this node.
  bool is_awaited(size_t node) const;

 private:
  struct RankState {
    size_t node = 0;
    bool joined = false;
    bool left = false;
  };
  using Key = std::vector<uint32_t>;  // ranks, ascending; none: all
  struct Fence {
    std::map<size_t, std::string> entered;  // the data, by node
    std::vector<size_t> nodes;              // all that take part, ascending
    int32_t status = 0;
    bool awaits(size_t node) const;
  };
  struct Asked {
    size_t by;
    uint64_t id;  // the asking node's own
    size_t of;
  };
  absl::StatusOr<std::vector<Send>> OnFence(size_t node, v1::PmixFence fence);
  absl::StatusOr<std::vector<Send>> OnWanted(size_t node, const v1::PmixWanted& wanted);
  absl::StatusOr<std::vector<Send>> OnFound(size_t node, v1::PmixFound found);
  absl::Status CheckOwn(size_t node, const v1::PmixRanks& ranks) const;
  absl::StatusOr<std::vector<size_t>> NodesOf(const Key& key) const;
  static Send Complete(const Key& key, Fence fence);
  static Send NotFound(const Asked& asked);

  const v1::PmixJob job_;
  std::vector<RankState> ranks_;
  std::vector<bool> finished_;  // by node
  std::map<Key, Fence> fences_;
  std::map<uint64_t, Asked> asked_;  // by the id we sent to the other node
  std::vector<size_t> asking_;       // how many of them, by node
  uint64_t next_ = 1;
  size_t joined_ = 0;
};

}  // namespace dtrain::rendezvous
