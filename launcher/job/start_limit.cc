// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/start_limit.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "launcher/job/outcome.h"
#include "rendezvous/barrier_core.h"

namespace dtrain::job {

StartLimit::StartLimit(const Cluster& cluster, const EarlyFaults& early_faults, StopPhase& stop)
    : cluster_(cluster), early_faults_(early_faults), stop_(stop) {
  Restart();
}

void StartLimit::Restart() { start_by_ = After(cluster_.now(), cluster_.options().start_timeout); }

void StartLimit::Suspend() { start_by_ = kNever; }

void StartLimit::Credit(Duration pause) {
  if (NextDeadline() != kNever) start_by_ += pause;
}

TimePoint StartLimit::NextDeadline() const {
  return cluster_.state() < State::kRunning ? start_by_ : kNever;
}

void StartLimit::OnDeadline() {
  if (cluster_.now() < NextDeadline()) return;
  std::string message = absl::StrCat(
      "not started within ", FormatSeconds(cluster_.options().start_timeout),
      " (--start-timeout), ", StateName(cluster_.state()), ": waiting for ", Waiting());
  if (early_faults_.any()) {
    absl::StrAppend(&message, "\n", early_faults_.Text("and these failed:"));
  }
  stop_.Stop({.kind = Verdict::Kind::kStartTimeout,
              .exit_code = kExitRendezvous,
              .message = std::move(message),
              .rank = {},
              .signal = 0});
}

std::string StartLimit::Waiting() const {
  std::vector<rendezvous::MissingNode> missing;
  for (uint32_t i = 0; i < cluster_.size(); ++i) {
    const NodeView& view = cluster_.view(NodeId(i));
    if (view.gone || view.waiting_for.empty()) continue;
    missing.push_back({NodeId(i), view.host, view.waiting_for});
  }
  return rendezvous::FormatMissing(missing);
}

}  // namespace dtrain::job
