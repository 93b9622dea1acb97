// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/trace.h"

#include <variant>

#include "absl/strings/string_view.h"

namespace dtrain::report {
namespace {

void Reached(Timeline& timeline, const job::JobCore& core, NodeId id, absl::string_view part,
             TimePoint now) {
  timeline.NodeReached(id, core.nodes()[id.value()].host, part, now);
}

}  // namespace

void Trace(Timeline& timeline, const job::JobCore& core, const job::Event& event, TimePoint now) {
  if (const auto* connected = std::get_if<job::NodeConnected>(&event)) {
    Reached(timeline, core, connected->node, "connect", now);
  } else if (const auto* agent = std::get_if<job::AgentMessage>(&event)) {
    if (agent->event.has_welcome()) Reached(timeline, core, agent->node, "look at the node", now);
    if (agent->event.has_finished()) Reached(timeline, core, agent->node, "run", now);
  } else if (const auto* said = std::get_if<job::ShepherdMessage>(&event)) {
    const job::NodeView& node = core.nodes()[said->node.value()];
    if (said->event.has_started()) Reached(timeline, core, said->node, "start workers", now);
    if (said->event.has_finished()) Reached(timeline, core, said->node, "run", now);
    if (!said->event.has_spans()) return;
    timeline.AddSpans(node.host, node.clock_ahead_at_start_nanos, said->event.spans());
  }
}

void TraceMeeting(Timeline& timeline, const job::JobCore& core, TimePoint now) {
  for (size_t i = 0; i < core.nodes().size(); ++i) {
    Reached(timeline, core, NodeId(static_cast<uint32_t>(i)), "wait for all", now);
  }
}

}  // namespace dtrain::report
