// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/rank_table.h"

#include "absl/strings/str_cat.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {

bool RankTable::IsOf(uint32_t rank, NodeId node) const {
  return rank < ranks_.size() && ranks_[rank].node == node;
}

std::string RankTable::Name(uint32_t rank) const {
  const auto& elastic = cluster_.options().elastic;
  return absl::StrCat("rank ", rank + (elastic ? elastic->first_number() : 0), " on ",
                      cluster_.host(ranks_[rank].node));
}

void RankTable::Assign() {
  const plan::Plan& plan = cluster_.plan();
  ranks_.assign(plan.world_size, {});
  nodes_.assign(nodes_.size(), {});
  for (const plan::PlannedNode& node : plan.nodes) {
    nodes_[node.node.value()].living = node.workers.size();
    for (const v1::WorkerSpec& worker : node.workers) {
      ranks_[worker.rank()].rank = Rank(worker.rank());
      ranks_[worker.rank()].node = node.node;
    }
  }
}

bool RankTable::SetEnd(NodeId node, const v1::WorkerExit& exit, int64_t unix_nanos) {
  if (!IsOf(exit.rank(), node) || ranks_[exit.rank()].ended) return false;
  RankEnd& end = ranks_[exit.rank()];
  end.ended = true;
  end.exit = exit;
  end.ended_unix_nanos = unix_nanos;
  end.halted_at = kNever;
  OfNode& of_node = nodes_[node.value()];
  --of_node.living;
  of_node.told_to_end |= exit.told_to_stop();
  ++ended_;
  if (HasFailed(exit)) {
    ++failed_;
  } else if (of_node.first_exit == kNever) {
    of_node.first_exit = cluster_.now();
  }
  return true;
}

void RankTable::SetProgress(const v1::RankProgress& progress) {
  ranks_[progress.rank()].progress = progress;
}

void RankTable::SetHalted(uint32_t rank, TimePoint since, int64_t unix_nanos) {
  ranks_[rank].halted_at = since;
  ranks_[rank].halted_unix_nanos = unix_nanos;
}

}  // namespace dtrain::job
