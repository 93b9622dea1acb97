// SPDX-License-Identifier: Apache-2.0
// While workers live: who ended how, who failed first, fences, lost nodes.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/job/job_core_impl.h"

namespace dtrain::job {
namespace {

// A failure on one node makes workers of others fail within milliseconds, and their reports may
// overtake its own. Until this long after the first report the earliest of them counts.
constexpr Duration kVerdictSettle = std::chrono::milliseconds(100);
// A rank that asked for the job's abort is given 200 ms by its shepherd to end by itself: its
// neighbours may have failed, and have been told, long before that.
constexpr Duration kAbortSettle = std::chrono::milliseconds(300);

// All nodes of a job meet the same lack within moments.
constexpr Duration kWarningSettle = std::chrono::milliseconds(200);

constexpr size_t kMostHaltedNamed = 8;  // of ranks that do not run

}  // namespace

bool HasGivenUsUp(const NodeClosed& closed) {
  return absl::IsAborted(closed.why) || (absl::IsNotFound(closed.why) && !closed.started_anew);
}

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

// False when it names a rank of another node.
bool JobImpl::RecordProgress(const NodeMessage& message) {
  for (const v1::RankProgress& progress : message.event.progress().ranks()) {
    const bool theirs =
        progress.rank() < ranks.size() && ranks[progress.rank()].node == message.node;
    if (!theirs) return false;
    RankEnd& end = ranks[progress.rank()];
    end.progress = progress;
    NoteHalt(message, end);
    if (!end.ended) collectives.OnProgress(now, progress);
  }
  return true;
}

void JobImpl::OnProgress(const Event& event) {
  const NodeMessage& message = Message(event);
  if (!RecordProgress(message)) return Violation(message.node, "Progress of another node's rank");
  CheckCollectives();
  if (state == State::kRunning) TellHalted();
}

// The counters of workers that are being ended are still worth having.
void JobImpl::OnLastProgress(const Event& event) { (void)RecordProgress(Message(event)); }

// A process that does not run since its node first saw it so.
void JobImpl::NoteHalt(const NodeMessage& message, RankEnd& end) {
  if (end.ended || end.progress.process_state() == 0) {
    end.halted_at = kNever;
    return;
  }
  if (end.halted_at == kNever) {
    end.halted_at = now;
    end.halt_told = false;
  }
  end.halted_unix_nanos =
      At(message.node)
          .clock.ToOurs(end.progress.state_since_unix_nanos(), message.received_unix_nanos);
}

// "rank 3 on gpu02 (pid 123): stopped (T) since 14:03:05"
std::string JobImpl::HaltText(const RankEnd& end) const {
  const char letter = static_cast<char>(end.progress.process_state());
  std::string what = absl::StrCat("in state ", Escape(std::string(1, letter)));
  if (letter == 'T') what = "stopped (T)";
  if (letter == 't') what = "stopped by a debugger (t)";
  if (letter == 'D') what = "waiting in the kernel (D)";
  const int64_t since = end.halted_unix_nanos;
  return absl::StrCat(
      "rank ", end.rank.value(), " on ", Host(end.node), " (pid ", end.pid, "): ", what, " since ",
      options.time_of_day
          ? options.time_of_day(since)
          : absl::FormatTime("%H:%M:%S", absl::FromUnixNanos(since), absl::UTCTimeZone()));
}

// Of those that do not run; "" when all do, as far as known.
std::string JobImpl::HaltedRanks() const {
  std::vector<std::string> texts;
  size_t more = 0;
  for (const RankEnd& end : ranks) {
    if (end.halted_at == kNever) continue;
    if (texts.size() < kMostHaltedNamed) {
      texts.push_back(HaltText(end));
    } else {
      ++more;
    }
  }
  if (more > 0) texts.push_back(absl::StrCat("and ", more, " more"));
  return absl::StrJoin(texts, ", ");
}

// Said while the job runs, once for each rank that has not run for long.
void JobImpl::TellHalted() {
  if (options.collective_warning <= Duration::zero()) return;
  std::vector<std::string> texts;
  for (RankEnd& end : ranks) {
    if (end.halted_at == kNever || now < end.halted_at + options.collective_warning) continue;
    if (std::exchange(end.halt_told, true) || texts.size() == kMostHaltedNamed) continue;
    texts.push_back(HaltText(end));
  }
  if (!texts.empty()) WarnUser(absl::StrJoin(texts, ", "));
}

// What a job that is ended by its time limit was at.
std::string JobImpl::WhereTheyAre() const {
  std::string text =
      absl::StrCat(ranks.size() - ranks_ended, " of ", Count(ranks.size(), "rank"), " still ran");
  for (const std::string& more : {HaltedRanks(), CollectiveText()}) {
    if (!more.empty()) absl::StrAppend(&text, "; ", more);
  }
  return text;
}

// "" when no rank is inside a collective for longer than one takes.
std::string JobImpl::CollectiveText() const {
  return collectives.Explain(now, [this](uint32_t rank) {
    return absl::StrCat("rank ", rank, " on ", Host(ranks[rank].node));
  });
}

void JobImpl::CheckCollectives() {
  const TimePoint since = collectives.oldest();
  if (since == kNever) return;
  if (now >= After(since, options.collective_timeout)) {
    return Stalled(absl::StrCat(CollectiveText(), " (--collective-timeout ",
                                FormatSeconds(options.collective_timeout), ")"));
  }
  if (now < After(since, options.collective_warning) || warned_of_collective == since) return;
  warned_of_collective = since;
  WarnUser(absl::StrCat(CollectiveText(), options.collective_timeout == Duration::zero()
                                              ? "; --collective-timeout TIME would end the job"
                                              : ""));
}

// When it is certain that the present fence waits for a rank that has ended with 0, and for how
// long that is tolerated. Costs a look at all nodes, but only once a rank has ended.
void JobImpl::PlanStallCheck() {
  stall_at = kNever;
  if (ranks_ended == 0 || options.exit_timeout <= Duration::zero()) return;
  PlanMpiStall();
  if (!fence->in_progress()) return;
  for (size_t i = 0; i < the_plan.nodes.size(); ++i) {
    const TimePoint exit = At(NodeOfPlan(i)).first_exit;
    if (fence->has_entered(i) || exit == kNever) continue;
    stall_at = std::min(stall_at, After(std::max(exit, fence_since), options.exit_timeout));
  }
}

// Ranks may end at very different times, and rank 0 may write a model for long: without the user's
// word that is worth a line, no more.
void JobImpl::OnEarlyExitTimeout() {
  warn_exit_at = kNever;
  std::string text =
      absl::StrCat("rank ", early_exit.value(), " on ", Host(ranks[early_exit.value()].node),
                   " ended with 0 ", FormatSeconds(options.exit_timeout), " ago, ",
                   ranks.size() - ranks_ended, " of ", Count(ranks.size(), "rank"), " still run");
  if (std::string mpi = MpiStallText(); options.exit_timeout_ends_job && !mpi.empty()) {
    Stalled(std::move(mpi));
  } else if (options.exit_timeout_ends_job) {
    Stalled(absl::StrCat(text, " (--exit-timeout)"));
  } else {
    WarnUser(std::move(text));
  }
}

void JobImpl::OnFenceStalled() {
  std::vector<std::string> who;
  if (std::string text = MpiStallText(); !text.empty()) return Stalled(std::move(text));
  for (size_t i = 0; i < the_plan.nodes.size(); ++i) {
    if (fence->has_entered(i)) continue;
    for (const v1::WorkerSpec& worker : the_plan.nodes[i].workers) {
      if (!ranks[worker.rank()].ended) continue;
      who.push_back(absl::StrCat("rank ", worker.rank(), " on ", Host(NodeOfPlan(i))));
    }
  }
  Stalled(absl::StrCat("the others wait in fence ", fence->sequence(), " for ",
                       rendezvous::FormatHosts(who), ", ended with 0 more than ",
                       FormatSeconds(options.exit_timeout), " ago (--exit-timeout)"));
}

void JobImpl::Stalled(std::string message) {
  if (const std::string halted = HaltedRanks(); !halted.empty()) {
    absl::StrAppend(&message, "; ", halted);
  }
  Stop({.kind = Verdict::Kind::kStalled,
        .exit_code = kExitStalled,
        .message = std::move(message),
        .rank = {},
        .signal = 0});
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

// Tells one node's trouble. The first ends the job; those that come right behind are told with it.
void JobImpl::LateFault(NodeId id, std::string text, int exit_code) {
  const bool first = verdict.kind == Verdict::Kind::kNone;
  // All nodes were told to start: one that could not either tells so, however late it answers.
  const bool same_start = !ran && At(id).start_sent && !At(id).started;
  const bool more = verdict.kind == Verdict::Kind::kNode &&
                    (now <= verdict_open_until || same_start || IsTold(text));
  if (!first && !more) return;
  AddLateFault(id, std::move(text), exit_code);
  if (more) return;
  verdict_open_until = now + kVerdictSettle;
  // FinishJob writes the message, when all are known: it names thousands of nodes at times.
  Stop({.kind = Verdict::Kind::kNode,
        .exit_code = exit_code,
        .message = "",
        .rank = {},
        .signal = 0});
}

void JobImpl::AddLateFault(NodeId id, std::string text, int exit_code) {
  told_texts.insert(text);
  faults.push_back({Host(id), std::move(text), exit_code});
  tell_late_faults = true;
}

// Of another node: what lies between takes them all, however long each needs to see it.
bool JobImpl::IsTold(const std::string& text) const { return told_texts.count(text) > 0; }

void JobImpl::OnClosed(const Event& event) {
  const auto& closed = std::get<NodeClosed>(event);
  std::string why(closed.why.message());
  if (why.empty()) why = "its agent ended the session";
  if (HasGivenUsUp(closed) && BlameOwnPause()) return LetGo(closed.node);
  if (absl::IsNotFound(closed.why)) {
    // An agent that came back without the job: its shepherd and workers are gone.
    At(closed.node).finished = true;
    return LoseNode(closed.node, Printable(why),
                    closed.started_anew ? kExitNodeLost : kExitAgentLost);
  }
  int exit_code = state == State::kStarting ? kExitStartAgents : kExitNodeLost;
  if (closed.not_authorised) exit_code = kExitNotAuthorised;
  LoseConnection(closed.node, Printable(why), exit_code);
}

void JobImpl::LoseConnection(NodeId id, const std::string& why, int exit_code) {
  std::string text = absl::StrCat("the connection to its agent is lost: ", why);
  if (At(id).finished) {
    absl::StrAppend(&text, "; its workers had ended, but not all of their output has arrived");
  } else {
    absl::StrAppend(&text, "; it ends its workers by itself within ",
                    FormatSeconds(options.lease + options.grace));
  }
  LoseNode(id, std::move(text), exit_code);
}

void JobImpl::LetGo(NodeId id) {
  views[id.value()].gone = true;
  views[id.value()].waiting_for.clear();
  actions.push_back(Disconnect{id});
  FinishIfAllGone();
}

void JobImpl::LoseNode(NodeId id, std::string text, int exit_code) {
  if (still_blamed && At(id).told_to_end) return LetGo(id);
  views[id.value()].gone = true;
  views[id.value()].waiting_for.clear();
  actions.push_back(Disconnect{id});
  text = WithOwnPause(std::move(text));
  if (IsCause(id)) return LostFirst(id, std::move(text), exit_code);
  // A job that is being stopped goes on with the other nodes.
  const bool told =
      verdict.kind != Verdict::Kind::kNone && now > verdict_open_until && !IsTold(text);
  const bool other = verdict.kind != Verdict::Kind::kNone && verdict.kind != Verdict::Kind::kNode;
  if (state == State::kStopping && (told || other)) {
    WarnUser(absl::StrCat(Host(id), ": ", text));
  } else {
    LateFault(id, std::move(text), exit_code);
  }
  FinishIfAllGone();
}

// Of a worker's failure that was told while this node had fallen silent for good: its neighbours
// fail when its workers end or their connections break, before its lease is over.
bool JobImpl::IsCause(NodeId id) {
  return state == State::kStopping && verdict.kind == Verdict::Kind::kWorker &&
         At(id).ranks_left > 0 && At(id).last_heard < verdict_open_until - kVerdictSettle;
}

void JobImpl::LostFirst(NodeId id, std::string text, int exit_code) {
  absl::StrAppend(&text, "; rank ", verdict.rank.value(), " on ",
                  Host(ranks[verdict.rank.value()].node), " failed after that, with exit code ",
                  verdict.exit_code);
  AddLateFault(id, std::move(text), exit_code);
  verdict = {
      .kind = Verdict::Kind::kNode, .exit_code = exit_code, .message = "", .rank = {}, .signal = 0};
  verdict_open_until = now + kVerdictSettle;
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
