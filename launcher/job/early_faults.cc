// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/early_faults.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"

namespace dtrain::job {
namespace {

// After a node failed: how long the others may stay quiet before all failures are told, and for how
// long in all.
constexpr Duration kQuiet = std::chrono::milliseconds(500);
constexpr Duration kLongestQuiet = std::chrono::seconds(3);

}  // namespace

void EarlyFaults::SetFailed(NodeId node) {
  failed_[node.value()] = true;
  if (!cluster_.view(node).joined) ++never_joined_;
}

void EarlyFaults::Add(NodeId node, std::string text, int exit_code, bool absent) {
  const TimePoint now = cluster_.now();
  all_absent_ = all_absent_ && absent;
  faults_.Add(node, std::move(text), exit_code);
  if (settle_by_ == kNever) settle_by_ = now + kLongestQuiet;
  settle_at_ = std::min(now + kQuiet, settle_by_);
}

void EarlyFaults::LeaveOut(NodeId node, std::string text, int exit_code) {
  left_out_.Add(node, std::move(text), exit_code);
}

void EarlyFaults::TellLeftOut() {
  const std::string what =
      absl::StrCat("is left out (at least ", cluster_.options().min_nodes, " are needed)");
  for (std::string& line : left_out_.Lines(what, cluster_)) out_.Warn(std::move(line));
  left_out_.Clear();
}

void EarlyFaults::Conclude() {
  // If the job never starts, nobody was left out of it.
  faults_.Append(left_out_);
  left_out_.Clear();
  // Those that may come yet are not what ends this start, unless something else does for good.
  const bool any_waited_for = retries_.any() && !all_absent_;
  if (any_waited_for) retries_.AddTo(faults_);
  const std::string of = absl::StrCat(faults_.size(), " of ", Count(cluster_.size(), "node"));
  const std::string heading = never_joined_ > 0 || any_waited_for
                                  ? absl::StrCat("could not start the agents on ", of, ":")
                                  : absl::StrCat(of, " failed before the start:");
  stop_.Stop({.kind = Verdict::Kind::kNode,
              .exit_code = faults_.EarlyExitCode(),
              .message = Text(heading),
              .rank = {},
              .signal = 0,
              .nodes = faults_.Nodes(),
              .absent = all_absent_});
}

TimePoint EarlyFaults::NextDeadline() const {
  return cluster_.state() < State::kStarting ? settle_at_ : kNever;
}

void EarlyFaults::OnDeadline() {
  if (cluster_.now() >= NextDeadline()) Conclude();
}

}  // namespace dtrain::job
