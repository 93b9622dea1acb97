// SPDX-License-Identifier: Apache-2.0
#include "launcher/node_output.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace dtrain {

NodeOutput::NodeOutput(const job::JobCore& core, output::OutputRouter& router,
                       status::LogTails* tails, uint32_t first)
    : core_(core), router_(router), tails_(tails), first_(first), nodes_(core.nodes().size()) {}

bool NodeOutput::IsOn(NodeId id, uint32_t rank) const {
  const std::vector<job::RankEnd>& ranks = core_.ranks();
  return rank < ranks.size() && ranks[rank].node == id;
}

absl::Status NodeOutput::Check(NodeId id, const v1::LogChunk& chunk) const {
  if (!IsOn(id, chunk.rank()) ||
      (chunk.stream() != v1::STREAM_KIND_STDOUT && chunk.stream() != v1::STREAM_KIND_STDERR)) {
    return absl::DataLossError(absl::StrCat("its agent sent output ", chunk.stream(), " of rank ",
                                            chunk.rank(), ", which is not there"));
  }
  return absl::OkStatus();
}

void NodeOutput::Deliver(NodeId id, v1::LogChunk chunk) {
  const Rank rank = InLaunch(chunk.rank());
  if (tails_ != nullptr)
    tails_->Append(rank, chunk.stream(), chunk.data(), absl::GetCurrentTimeNanos());
  router_.Deliver(core_.nodes()[id.value()].host, rank, chunk.stream(),
                  std::move(*chunk.mutable_data()));
}

void NodeOutput::OnCut(NodeId id) {
  for (const job::RankEnd& rank : core_.ranks()) {
    if (rank.node == id) router_.Cut(InLaunch(rank.rank.value()));
  }
}

void NodeOutput::OnFinished(NodeId id, v1::Finished finished) {
  nodes_[id.value()].finished = std::move(finished);
  EndStreams(id);
}

void NodeOutput::OnDelivered(NodeId id) {
  nodes_[id.value()].delivered = true;
  EndStreams(id);
}

// Lines without an end go out as soon as a node has no more, not at the end of the job.
void NodeOutput::EndStreams(NodeId id) {
  const Node& node = nodes_[id.value()];
  if (!node.delivered) return;
  for (const v1::LogEnd& end : node.finished.logs()) {
    if (IsOn(id, end.rank())) router_.EndOfStream(InLaunch(end.rank()), end.stream());
  }
}

}  // namespace dtrain
