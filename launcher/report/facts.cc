// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/facts.h"

#include "absl/strings/str_format.h"

namespace dtrain::report {

JobFacts FactsOf(const job::JobCore& core) {
  return {core.state(),   core.nodes(),   core.ranks(),
          core.phases(),  core.verdict(), core.secondary_deaths(),
          core.warnings()};
}

const char* PhaseName(job::State state) {
  switch (state) {
    case job::State::kConnecting:
      return "connect";
    case job::State::kProbing:
      return "check network";
    case job::State::kHolding:
      return "reserve ports";
    case job::State::kStarting:
      return "start";
    case job::State::kRunning:
      return "run";
    case job::State::kStopping:
      return "stop";
    case job::State::kFinished:
      return "end";
  }
  return "?";
}

const std::string& HostOf(const JobFacts& facts, NodeId id) {
  static const std::string* unknown = new std::string("?");
  return id.value() < facts.nodes.size() ? facts.nodes[id.value()].host : *unknown;
}

bool IsWaiting(job::State state, const job::NodeView& node) {
  if (node.gone) return false;
  return state == job::State::kConnecting ? !node.joined : !node.waiting_for.empty();
}

std::string Seconds(Duration duration) {
  double seconds = std::chrono::duration<double>(duration).count();
  if (seconds < 0) seconds = 0;
  return absl::StrFormat("%.*f s", seconds < 10 ? 2 : seconds < 1000 ? 1 : 0, seconds);
}

}  // namespace dtrain::report
