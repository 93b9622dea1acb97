// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/cancels.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {
namespace {

// Stop commands that come closer are one, given in two places. A little longer than the launcher of
// a detached job may take to write the first one down.
constexpr Duration kSameStop = std::chrono::seconds(3);

Verdict SignalVerdict(int signal, std::string message) {
  return {.kind = Verdict::Kind::kSignal,
          .exit_code = kExitSignalBase + signal,
          .message = std::move(message),
          .rank = {},
          .signal = signal};
}

bool IsCancel(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

}  // namespace

Cancels::Cancels(const Cluster& cluster, Out& out, const RankWatch& rank_watch, StopPhase& stop)
    : cluster_(cluster),
      out_(out),
      rank_watch_(rank_watch),
      stop_(stop),
      limit_at_(After(cluster.now(), cluster.options().time_limit)) {}

void Cancels::OnSignal(const Event& event) {
  const auto& [signal, from] = std::get<UserSignal>(event);
  if (IsCancel(signal)) {
    cancelled_at_ = std::min(cancelled_at_, cluster_.now());
    // Often because it does not go on.
    const std::string halted = cluster_.state() == State::kRunning ? rank_watch_.HaltedRanks() : "";
    stop_.Cancel(SignalVerdict(
        signal, absl::StrCat(EndedBy(signal, from), halted.empty() ? "" : "; ", halted)));
  } else if (signal == SIGPIPE) {
    stop_.OutputGone(SignalVerdict(SIGPIPE, "dtrain's output was closed (SIGPIPE)"));
  } else if (signal == SIGUSR1 || signal == SIGUSR2) {
    PassOn(signal, from);
  }
}

void Cancels::PassOn(int signal, const std::string& from) {
  if (cluster_.state() != State::kRunning) {
    return out_.Warn(absl::StrCat(SignalName(signal), " is ignored: no worker is running yet"));
  }
  stop_.OnPassedOn(signal, from);
  v1::JobRequest request;
  request.mutable_signal()->set_signal(signal);
  out_.ToShepherds(cluster_.PlannedWithWork(), std::move(request));
}

// The first Ctrl-C of a job that already ends for another reason says that its output is not
// awaited for ever; one more, that its workers need no grace. So does `dtrain stop`. Any other
// SIGTERM may come from a program that repeats it.
void Cancels::OnSignalStopping(const Event& event) {
  const auto& [signal, from] = std::get<UserSignal>(event);
  if (signal == SIGPIPE || (IsCancel(signal) && cancelled_at_ == kNever)) return OnSignal(event);
  const bool stops_again = signal == SIGTERM && absl::StartsWith(from, kStopCommand) &&
                           cluster_.now() - cancelled_at_ >= kSameStop;
  if (signal == SIGINT || stops_again) stop_.KillNow();
}

void Cancels::OnEndAsked(const Event& event) {
  const auto& [why, cancels] = std::get<EndAsked>(event);
  if (!cancels) return stop_.Stop(SignalVerdict(SIGTERM, why));
  cancelled_at_ = std::min(cancelled_at_, cluster_.now());
  stop_.Cancel(SignalVerdict(SIGTERM, why));
}

// It ends already; only the wait for that becomes shorter.
void Cancels::OnEndAskedStopping(const Event& event) {
  if (std::get<EndAsked>(event).cancels) OnEndAsked(event);
}

void Cancels::OnOutputFailed(const Event& event) {
  stop_.OutputGone(SignalVerdict(
      SIGPIPE, absl::StrCat("the output cannot be written: ", std::get<OutputFailed>(event).why)));
}

TimePoint Cancels::NextDeadline() const {
  return cluster_.state() < State::kStopping ? limit_at_ : kNever;
}

void Cancels::OnDeadline() {
  if (cluster_.now() < NextDeadline()) return;
  cancelled_at_ = cluster_.now();
  const JobOptions& options = cluster_.options();
  const Duration told = std::max(options.told_time_limit, options.time_limit);
  const std::string where =
      cluster_.state() == State::kRunning ? absl::StrCat("; ", rank_watch_.WhereTheyAre()) : "";
  stop_.Cancel(
      {.kind = Verdict::Kind::kTimeLimit,
       .exit_code = kExitTimeLimit,
       .message = absl::StrCat("the time limit of ", FormatSeconds(told), " was reached", where),
       .rank = {},
       .signal = 0});
}

}  // namespace dtrain::job
