// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "launcher/job/cluster.h"

namespace dtrain::job {

// The ranks of the plan: what is known of each, and how many of them, of each node too, have ended
// how. Changed by StartPhase, RunPhase and RankWatch.
class RankTable {
 public:
  explicit RankTable(const Cluster& cluster) : cluster_(cluster), nodes_(cluster.size()) {}

  const std::vector<RankEnd>& all() const { return ranks_; }
  size_t size() const { return ranks_.size(); }
  const RankEnd& at(uint32_t rank) const { return ranks_[rank]; }
  bool IsOf(uint32_t rank, NodeId node) const;
  // "rank 3 on gpu02"; with the number that an elastic job has for it.
  std::string Name(uint32_t rank) const;

  size_t ended() const { return ended_; }
  size_t failed() const { return failed_; }
  size_t living_on(NodeId node) const { return nodes_[node.value()].living; }
  // When the first rank of that node ended with 0; kNever: none has.
  TimePoint first_exit(NodeId node) const { return nodes_[node.value()].first_exit; }
  // A worker of that node was told to end: its agent has ended the job there, or we have.
  bool told_to_end(NodeId node) const { return nodes_[node.value()].told_to_end; }

  void Assign();  // by a new plan
  void SetPid(uint32_t rank, uint32_t pid) { ranks_[rank].pid = pid; }
  // False when it is not about a living worker of that node.
  bool SetEnd(NodeId node, const v1::WorkerExit& exit, int64_t unix_nanos);
  void SetProgress(const v1::RankProgress& progress);
  void SetHalted(uint32_t rank, TimePoint since, int64_t unix_nanos);
  void SetSeen(uint32_t rank, const SignReader::Seen& seen) { ranks_[rank].seen = seen; }
  void SetHaltedNever(uint32_t rank) { ranks_[rank].halted_at = kNever; }

 private:
  struct OfNode {
    size_t living = 0;
    TimePoint first_exit = kNever;
    bool told_to_end = false;
  };
  const Cluster& cluster_;
  std::vector<RankEnd> ranks_;
  std::vector<OfNode> nodes_;
  size_t ended_ = 0;
  size_t failed_ = 0;
};

}  // namespace dtrain::job
