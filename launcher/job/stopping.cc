// SPDX-License-Identifier: Apache-2.0
// The way down: TERM, grace, KILL, the last bytes of the logs, and the end, which always comes.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "launcher/job/job_core_impl.h"

namespace dtrain::job {
namespace {

using std::chrono::milliseconds;

// The shepherd itself kills at the end of the grace. Only when it seems not to, we say so again.
constexpr Duration kKillMargin = std::chrono::seconds(1);
// The kernel may need seconds to tear down a process with much memory or a GPU context. A user who
// cancelled is not kept longer than this after KILL; with the second above it leaves another one,
// for goodbyes and the last output, of the five after the grace in which we promise to be gone.
constexpr Duration kGiveUpCancelled = std::chrono::seconds(3);
// Else the shepherd's own word is awaited, which names the process: it gives workers that cannot
// be killed 60 s, and log streams that somebody keeps open 60 s more.
constexpr Duration kGiveUp = std::chrono::seconds(125);
// After the shepherd has said that something cannot be killed: for the rest of its logs.
constexpr Duration kGiveUpAfterCleanupFailed = std::chrono::seconds(5);
// For output that is on its way when a job is cancelled whose workers have all ended.
constexpr Duration kLastOutput = std::chrono::seconds(1);

uint32_t GraceMs(Duration grace) {
  const auto ms = std::chrono::duration_cast<milliseconds>(grace).count();
  // Zero means KILL at once, which is not what is meant here.
  return static_cast<uint32_t>(std::clamp<int64_t>(ms, 1, UINT32_MAX));
}

Verdict SignalVerdict(int signal, std::string message) {
  return {.kind = Verdict::Kind::kSignal,
          .exit_code = kExitSignalBase + signal,
          .message = std::move(message),
          .rank = {},
          .signal = signal};
}

bool IsCancel(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

}  // namespace

void JobImpl::OnSignal(const Event& event) {
  const int signal = std::get<UserSignal>(event).signal;
  if (IsCancel(signal)) {
    ++cancels;
    // Often because it does not go on.
    const std::string halted = state == State::kRunning ? HaltedRanks() : "";
    return Cancel(SignalVerdict(
        signal, absl::StrCat("ended by ", SignalName(signal), halted.empty() ? "" : "; ", halted)));
  }
  if (signal == SIGPIPE) {
    output_failed = true;
    return Cancel(SignalVerdict(SIGPIPE, "dtrain's output was closed (SIGPIPE)"));
  }
  if (signal != SIGUSR1 && signal != SIGUSR2) return;
  if (state != State::kRunning) {
    return WarnUser(absl::StrCat(SignalName(signal), " is ignored: no worker is running yet"));
  }
  SendMany send;
  for (const plan::PlannedNode& node : the_plan.nodes) {
    const bool there = !views[node.node.value()].gone && !At(node.node).finished;
    if (there) send.nodes.push_back(node.node);
  }
  send.request.mutable_signal()->set_signal(signal);
  if (!send.nodes.empty()) actions.push_back(std::move(send));
}

// The first Ctrl-C of a job that already ends for another reason says that its output is not
// awaited for ever; one more, that its workers need no grace.
void JobImpl::OnSignalStopping(const Event& event) {
  const int signal = std::get<UserSignal>(event).signal;
  if (signal == SIGPIPE) return OnOutputFailedStopping(OutputFailed{});
  if (!IsCancel(signal)) return;
  if (++cancels == 1) {
    Cancel(SignalVerdict(signal, absl::StrCat("ended by ", SignalName(signal))));
  } else if (signal == SIGINT) {
    KillNow();
    cut_logs_at = AnyUnfinished() ? give_up_at : now;
  }
}

void JobImpl::OnOutputFailed(const Event& event) {
  output_failed = true;
  Cancel(SignalVerdict(
      SIGPIPE, absl::StrCat("the output cannot be written: ", std::get<OutputFailed>(event).why)));
}

void JobImpl::OnOutputFailedStopping(const Event& event) {
  output_failed = true;
  const std::string& why = std::get<OutputFailed>(event).why;
  Cancel(SignalVerdict(SIGPIPE, absl::StrCat("the output cannot be written: ", why)));
  for (uint32_t i = 0; i < nodes.size(); ++i) ReleaseIfDone(NodeId(i));
  FinishIfAllGone();
}

void JobImpl::OnExitStopping(const Event& event) {
  const NodeMessage& message = Message(event);
  if (!RecordExit(message)) return;
  if (HasFailed(message.event.exit())) ConsiderFirst(message);
}

void JobImpl::OnFailureStopping(const Event& event) {
  const NodeMessage& message = Message(event);
  const v1::NodeFailure& failure = message.event.failure();
  if (failure.kind() == v1::NodeFailure::KIND_CLEANUP) {
    cleanup_faults.push_back({Host(message.node), Printable(failure.message()), kExitCleanup});
    give_up_at = std::min(give_up_at, now + kGiveUpAfterCleanupFailed);
    return;
  }
  OnFailure(event);
}

void JobImpl::OnDrained(const Event& event) {
  const NodeId node = std::get<LogsDrained>(event).node;
  At(node).drained = true;
  ReleaseIfDone(node);
  FinishIfAllGone();
}

// Ends the job at the user's wish: from now on its output is not waited for without a bound.
void JobImpl::Cancel(Verdict why) {
  cancelled = true;
  Stop(std::move(why));
  if (state != State::kStopping) return;
  give_up_at = std::min(give_up_at, (kill_at == kNever ? now : kill_at) + kGiveUpCancelled);
  if (cut_logs_at == kNever) cut_logs_at = AnyUnfinished() ? give_up_at : now + kLastOutput;
}

// The first verdict stands. Before anything was started that is the end.
void JobImpl::Stop(Verdict why) {
  if (verdict.kind == Verdict::Kind::kNone) verdict = std::move(why);
  if (state >= State::kStopping) return;
  if (state == State::kStarting || state == State::kRunning) return BeginStopping();
  for (uint32_t i = 0; i < nodes.size(); ++i) Release(NodeId(i));
  FinishJob();
}

void JobImpl::BeginStopping() {
  Enter(State::kStopping);
  // After a success the workers are gone already; what they left behind has the same time to go.
  kill_at = now + options.grace + kKillMargin;
  give_up_at = kill_at + kGiveUp;
  if (!succeeded) {
    SendMany stop;
    for (const plan::PlannedNode& node : the_plan.nodes) {
      const bool there = !views[node.node.value()].gone && !At(node.node).finished;
      if (!there) continue;
      stop.nodes.push_back(node.node);
      views[node.node.value()].waiting_for = "its workers to end";
    }
    stop.request.mutable_stop()->set_grace_ms(
        options.grace <= Duration::zero() ? 0 : GraceMs(options.grace));
    if (!stop.nodes.empty()) actions.push_back(std::move(stop));
  } else if (the_plan.nodes.size() > 1 && !At(NodeOfPlan(master)).finished) {
    // It may have waited, its own ranks gone, for those of others that used its key-value server.
    SendTo(NodeOfPlan(master)).mutable_stop()->set_grace_ms(GraceMs(options.grace));
  }
  for (uint32_t i = 0; i < nodes.size(); ++i) ReleaseIfDone(NodeId(i));
  FinishIfAllGone();
}

bool JobImpl::AnyUnfinished() const {
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!views[i].gone && !nodes[i].finished) return true;
  }
  return false;
}

void JobImpl::KillNow() {
  kill_at = kNever;
  SendMany kill;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (views[i].gone || nodes[i].finished) continue;
    kill.nodes.push_back(NodeId(i));
    views[i].waiting_for = "its workers to end after KILL";
  }
  if (kill.nodes.empty()) return;
  give_up_at = std::min(give_up_at, now + (cancelled ? kGiveUpCancelled : kGiveUp));
  killed_at = now;
  kill.request.mutable_stop()->set_grace_ms(0);
  actions.push_back(std::move(kill));
}

void JobImpl::GiveUp() {
  give_up_at = kNever;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (views[i].gone || nodes[i].finished) continue;
    cleanup_faults.push_back(
        {Host(NodeId(i)),
         absl::StrCat("it has not reported the end of its workers ", FormatSeconds(now - killed_at),
                      " after KILL; check that host for leftover processes"),
         kExitCleanup});
    views[i].gone = true;
    actions.push_back(Disconnect{NodeId(i)});
  }
  FinishIfAllGone();
}

void JobImpl::CutLogs() {
  cut_logs_at = kNever;
  std::vector<std::string> cut;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (views[i].gone || !nodes[i].finished) continue;
    cut.push_back(Host(NodeId(i)));
    Release(NodeId(i));
  }
  if (!cut.empty()) {
    WarnUser(absl::StrCat("did not wait for the last output of ", rendezvous::FormatHosts(cut)));
  }
  FinishIfAllGone();
}

void JobImpl::ReleaseIfDone(NodeId id) {
  const Node& node = At(id);
  if (node.finished && (node.drained || output_failed)) Release(id);
}

void JobImpl::Release(NodeId id) {
  NodeView& view = views[id.value()];
  if (view.gone) return;
  view.gone = true;
  view.waiting_for.clear();
  // Also to one that has refused: a resident agent would keep its session for us.
  if (At(id).connected) SendTo(id).mutable_goodbye();
  actions.push_back(Disconnect{id});
}

void JobImpl::FinishIfAllGone() {
  if (state != State::kStopping) return;
  const bool all = std::all_of(views.begin(), views.end(), [](const auto& v) { return v.gone; });
  if (all) FinishJob();
}

void JobImpl::FinishJob() {
  TellNodeWarnings();
  if (tell_late_faults && verdict.kind == Verdict::Kind::kNode) {
    verdict.message = FaultsText("several nodes failed:", faults);
  }
  if (verdict.kind == Verdict::Kind::kNone && succeeded && cleanup_faults.empty()) {
    verdict.kind = Verdict::Kind::kSuccess;
  }
  if (!cleanup_faults.empty()) {
    // Whatever ended the job: that something may be left is what the user must act on.
    if (verdict.kind == Verdict::Kind::kNone) verdict.kind = Verdict::Kind::kNode;
    if (!verdict.message.empty()) verdict.message += "\n";
    verdict.message += FaultsText("some workers may still be running:", cleanup_faults);
    verdict.exit_code = kExitCleanup;
  }
  Enter(State::kFinished);
  actions.push_back(Finish{});
}

}  // namespace dtrain::job
