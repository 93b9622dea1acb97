// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/fence_core.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::rendezvous {

FenceCore::FenceCore(std::vector<std::string> hosts, uint32_t first) : sequence_(first) {
  members_.resize(hosts.size());
  for (size_t i = 0; i < hosts.size(); ++i) members_[i].host = std::move(hosts[i]);
}

absl::StatusOr<std::optional<v1::FenceRelease>> FenceCore::Enter(size_t node,
                                                                 v1::FenceEnter enter) {
  if (node >= members_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("node ", node, " runs no rank of this job"));
  }
  Member& member = members_[node];
  if (enter.sequence() != sequence_) {
    return absl::FailedPreconditionError(absl::StrCat(member.host, " entered fence ",
                                                      enter.sequence(),
                                                      " while the job is at fence ", sequence_));
  }
  if (member.entered || member.finished) {
    return absl::FailedPreconditionError(
        absl::StrCat(member.host, " entered fence ", sequence_,
                     member.entered ? " twice" : " after all its workers had ended"));
  }
  member.entered = true;
  member.enter = std::move(enter);
  if (++entered_ < members_.size()) return std::optional<v1::FenceRelease>();

  v1::FenceRelease release;
  release.set_sequence(sequence_);
  finished_outside_ = 0;
  // In node order, so that every node sees the same table whoever came first.
  for (Member& each : members_) {
    for (v1::KeyValue& entry : *each.enter.mutable_entries()) {
      *release.add_entries() = std::move(entry);
    }
    each.enter.Clear();
    each.entered = false;
    if (each.finished) ++finished_outside_;
  }
  entered_ = 0;
  ++sequence_;
  return std::optional<v1::FenceRelease>(std::move(release));
}

void FenceCore::NodeFinished(size_t node) {
  if (node >= members_.size() || members_[node].finished) return;
  members_[node].finished = true;
  if (!members_[node].entered) ++finished_outside_;
}

}  // namespace dtrain::rendezvous
