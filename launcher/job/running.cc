// SPDX-License-Identifier: Apache-2.0
// While workers live: who ended how, who failed first, fences. What they are doing is in
// watching.cc, what becomes of nodes in losing.cc.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/job/job_core_impl.h"

namespace dtrain::job {
namespace {

// A rank that asked for the job's abort is given 200 ms by its shepherd to end by itself: its
// neighbours may have failed, and have been told, long before that.
constexpr Duration kAbortSettle = std::chrono::milliseconds(300);

// All nodes of a job meet the same lack within moments.
constexpr Duration kWarningSettle = std::chrono::milliseconds(200);

}  // namespace

void JobImpl::OnStarted(const Event& event) {
  const NodeMessage& message = Message(event);
  Node& node = At(message.node);
  const v1::Started& started = message.event.started();
  if (node.started) return Violation(message.node, "Started twice");
  std::set<uint32_t> seen;
  for (const v1::WorkerStarted& worker : started.workers()) {
    const bool ours = worker.rank() < ranks.size() && ranks[worker.rank()].node == message.node;
    if (!ours || !seen.insert(worker.rank()).second) {
      return Violation(message.node, absl::StrCat("Started for rank ", worker.rank()));
    }
  }
  for (const v1::WorkerStarted& worker : started.workers()) ranks[worker.rank()].pid = worker.pid();
  node.started = true;
  SetPreparing(message.node, false);
  views[message.node.value()].waiting_for.clear();
  const bool all = std::all_of(the_plan.nodes.begin(), the_plan.nodes.end(),
                               [this](const auto& each) { return At(each.node).started; });
  if (!all) return;
  ran = true;
  Enter(State::kRunning);
  CheckAllEnded();
}

// False when it was not a word about a living worker of that node.
bool JobImpl::RecordExit(const NodeMessage& message) {
  const v1::WorkerExit& exit = message.event.exit();
  if (exit.rank() >= ranks.size()) return false;
  RankEnd& end = ranks[exit.rank()];
  if (end.node != message.node || end.ended) return false;
  end.ended = true;
  end.exit = exit;
  end.ended_unix_nanos =
      At(message.node).clock.ToOurs(exit.unix_nanos(), message.received_unix_nanos);
  end.halted_at = kNever;
  collectives.OnEnded(exit.rank());
  --At(message.node).ranks_left;
  At(message.node).told_to_end |= exit.told_to_stop();
  ++ranks_ended;
  if (HasFailed(exit)) ++ranks_failed;
  return true;
}

void JobImpl::OnExit(const Event& event) {
  const NodeMessage& message = Message(event);
  const v1::WorkerExit& exit = message.event.exit();
  if (!RecordExit(message)) {
    return Violation(message.node, absl::StrCat("WorkerExit of rank ", exit.rank()));
  }
  if (HasFailed(exit)) return OnRankFailed(message);
  Node& node = At(message.node);
  if (node.first_exit == kNever) node.first_exit = now;
  if (ranks_ended == 1) {
    early_exit = Rank(exit.rank());
    warn_exit_at = After(now, options.exit_timeout);
  }
  PlanStallCheck();
  CheckAllEnded();
}

void JobImpl::OnRankFailed(const NodeMessage& message) {
  const v1::WorkerExit& exit = message.event.exit();
  if (exit.told_to_stop() && !exit.aborted()) {
    // Not by us: the agent acted on its own lease, or somebody ended the agent.
    if (BlameOwnPause()) return;
    return LateFault(message.node,
                     "its agent ended the workers without being asked to: it had not "
                     "heard from this launcher, or was itself stopped",
                     kExitNodeLost);
  }
  Verdict first{.kind = Verdict::Kind::kWorker,
                .exit_code = WorkerExitCode(exit),
                .message = "",
                .rank = Rank(exit.rank()),
                .signal = 0};
  verdict_open_until = now + kVerdictSettle;
  first_failure = FailureOrder(message);
  Stop(std::move(first));
}

// By when it happened. A worker that was struck down closes its connections before it can be
// reaped, and its neighbours may exit with an error of their own before that: within moments the
// one that was killed or crashed is the cause. SIGABRT is not such an end: libraries abort when
// they lose their peers. An abort happened when it was asked for.
std::pair<int64_t, uint32_t> JobImpl::FailureOrder(const NodeMessage& message) {
  const v1::WorkerExit& exit = message.event.exit();
  const auto ours = [&](int64_t unix_nanos) {
    return At(message.node).clock.ToOurs(unix_nanos, message.received_unix_nanos);
  };
  if (exit.aborted()) return {ours(exit.abort_unix_nanos()), exit.rank()};
  constexpr int kHard[] = {SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE};
  const bool hard = !exit.told_to_stop() &&
                    std::find(std::begin(kHard), std::end(kHard), exit.signal()) != std::end(kHard);
  const int64_t when = ours(exit.unix_nanos());
  return {hard ? when - std::chrono::nanoseconds(kVerdictSettle).count() : when, exit.rank()};
}

void JobImpl::ConsiderFirst(const NodeMessage& message) {
  const v1::WorkerExit& exit = message.event.exit();
  if (verdict.kind != Verdict::Kind::kWorker) return;
  // Told to stop before we told anybody: the others failed as this one was gone.
  const int64_t settle = std::chrono::nanoseconds(kVerdictSettle).count();
  if (exit.told_to_stop() && !exit.aborted() && IsOwnFault() &&
      FailureOrder(message).first < first_failure.first + settle) {
    verdict.kind = Verdict::Kind::kNone;
    (void)BlameOwnPause();
    return;
  }
  const Duration later = exit.aborted() ? kAbortSettle - kVerdictSettle : Duration::zero();
  if (now > verdict_open_until + later || (exit.told_to_stop() && !exit.aborted())) return;
  const std::pair<int64_t, uint32_t> mine = FailureOrder(message);
  if (mine >= first_failure) return;
  first_failure = mine;
  verdict.rank = Rank(exit.rank());
  verdict.exit_code = WorkerExitCode(exit);
}

void JobImpl::CheckAllEnded() {
  if (state != State::kRunning || ranks_ended < ranks.size()) return;
  succeeded = true;
  BeginStopping();
}

void JobImpl::OnFenceEnter(const Event& event) {
  const NodeMessage& message = Message(event);
  const Node& node = At(message.node);
  absl::StatusOr<std::optional<v1::FenceRelease>> release =
      fence->Enter(*node.plan_index, message.event.fence_enter());
  if (!release.ok()) return Violation(message.node, std::string(release.status().message()));
  if (*release) {
    SendMany send;
    for (const plan::PlannedNode& each : the_plan.nodes) {
      const bool there = !views[each.node.value()].gone && !At(each.node).finished;
      if (there) send.nodes.push_back(each.node);
    }
    *send.request.mutable_fence_release() = **std::move(release);
    actions.push_back(std::move(send));
    fence_since = kNever;
  } else if (fence_since == kNever) {
    fence_since = now;
  }
  PlanStallCheck();
}

void JobImpl::OnFailure(const Event& event) {
  const NodeMessage& message = Message(event);
  const v1::NodeFailure& failure = message.event.failure();
  Node& node = At(message.node);
  if (failure.kind() == v1::NodeFailure::KIND_REFUSED && !node.started) {
    node.finished = true;  // nothing was started, and nothing more will be said
    node.drained = true;
  }
  const bool is_cause = failure.kind() == v1::NodeFailure::KIND_HELPER &&
                        failure.exit_code() == kExitAgentLost &&
                        verdict.kind == Verdict::Kind::kWorker && now <= verdict_open_until;
  if (is_cause) {
    // A server of the ranks has died. One that was using it may have been heard before.
    LostFirst(message.node, Printable(failure.message()), FailureExitCode(failure));
  } else {
    LateFault(message.node, Printable(failure.message()), FailureExitCode(failure));
  }
  ReleaseIfDone(message.node);
  FinishIfAllGone();
}

void JobImpl::OnWarning(const Event& event) {
  const NodeMessage& message = Message(event);
  std::string text = Printable(message.event.warning().message());
  if (message.event.warning().detail()) details.insert(text);
  node_warnings.emplace_back(message.node, std::move(text));
  if (tell_warnings_at == kNever) tell_warnings_at = now + kWarningSettle;
}

// What several nodes say is one line.
void JobImpl::TellNodeWarnings() {
  tell_warnings_at = kNever;
  std::vector<std::string> texts;
  std::map<std::string, std::vector<std::string>> hosts_of;
  // As the hostfile has them, not as they happened to answer.
  std::stable_sort(node_warnings.begin(), node_warnings.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [node, text] : std::exchange(node_warnings, {})) {
    std::vector<std::string>& saying = hosts_of[text];
    if (saying.empty()) texts.push_back(text);
    if (saying.empty() || saying.back() != Host(node)) saying.push_back(Host(node));
  }
  for (const std::string& text : texts) {
    WarnUser(absl::StrCat(rendezvous::FormatHosts(hosts_of[text]), ": ", text),
             details.contains(text));
  }
}

void JobImpl::OnFinished(const Event& event) {
  const NodeMessage& message = Message(event);
  Node& node = At(message.node);
  const bool early = state != State::kStopping && (node.ranks_left > 0 || !node.started);
  if (node.finished || early) {
    if (state != State::kStopping) Violation(message.node, "Finished with workers left");
    return;
  }
  node.finished = true;
  views[message.node.value()].waiting_for.clear();
  if (fence) fence->NodeFinished(*node.plan_index);
  if (pmix) SendPmix(pmix->NodeFinished(*node.plan_index));
  ReleaseIfDone(message.node);
  FinishIfAllGone();
}

}  // namespace dtrain::job
