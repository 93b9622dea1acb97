// SPDX-License-Identifier: Apache-2.0
// Nodes that were told to start, and must first do what takes long.
#include <string>
#include <utility>

#include "launcher/job/job_core_impl.h"

namespace dtrain::job {

// How long an image takes to arrive says nothing of whether the start hangs: its time runs again,
// from the beginning, when all nodes have theirs.
void JobImpl::SetPreparing(NodeId id, bool is) {
  if (std::exchange(At(id).preparing, is) == is) return;
  if (is) {
    ++preparing;
  } else {
    --preparing;
  }
  start_by = preparing > 0 ? kNever : After(now, options.start_timeout);
}

void JobImpl::OnPreparing(const Event& event) {
  const NodeMessage& message = Message(event);
  if (At(message.node).started) return Violation(message.node, "Preparing when it had started");
  const std::string& what = message.event.preparing().what();
  views[message.node.value()].waiting_for = what.empty() ? "its workers to start" : Printable(what);
  SetPreparing(message.node, !what.empty());
}

}  // namespace dtrain::job
