// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/stop_phase.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/job/outcome.h"
#include "rendezvous/barrier_core.h"

namespace dtrain::job {
namespace {

// The shepherd itself kills at the end of the grace. Only when it seems not to, we say so again.
constexpr Duration kKillMargin = std::chrono::seconds(1);
// A node that still saves says so every half second.
constexpr Duration kSavingHolds = std::chrono::seconds(5);
// The others, whose grace each such word extends by two seconds, hear it this often.
constexpr Duration kPassOnSavingAgain = std::chrono::seconds(1);
// The kernel may need seconds to tear down a process with much memory or a GPU context. A user who
// cancelled is not kept longer than this after KILL; with the second above it leaves another one,
// for goodbyes and the last output, of the five after the grace in which we promise to be gone.
constexpr Duration kGiveUpCancelled = std::chrono::seconds(3);
// Else the shepherd's own word is awaited, which names the process: it gives workers that cannot
// be killed 60 s, and log streams that somebody keeps open 60 s more.
constexpr Duration kGiveUp = std::chrono::seconds(125);
// For a shepherd that was told to kill at once, before its agent does.
constexpr uint32_t kLastGraceMs = 1000;
// After the shepherd has said that something cannot be killed: for the rest of its logs.
constexpr Duration kGiveUpAfterCleanupFailed = std::chrono::seconds(5);
// For output that is on its way when a job is cancelled whose workers have all ended.
constexpr Duration kLastOutput = std::chrono::seconds(1);

// Zero means KILL at once, which is not always what is meant.
uint32_t AtLeastOneMs(Duration grace) { return std::max<uint32_t>(ToMs(grace), 1); }

v1::JobRequest StopRequest(uint32_t grace_ms, bool cancelled = false) {
  v1::JobRequest request;
  request.mutable_stop()->set_grace_ms(grace_ms);
  request.mutable_stop()->set_cancelled(cancelled);
  return request;
}

}  // namespace

Verdicts::Taken StopPhase::Stop(Cause why) {
  const Verdicts::Taken taken = verdicts_.Offer(std::move(why));
  if (cluster_.state() < State::kStopping) Begin();
  return taken;
}

void StopPhase::Succeed() {
  succeeded_ = true;
  Begin();
}

void StopPhase::Begin() {
  if (cluster_.state() < State::kStarting) {
    for (uint32_t i = 0; i < cluster_.size(); ++i) LetGo(NodeId(i));
    return Finish();
  }
  cluster_.Enter(State::kStopping);
  // After a success the workers are gone already; what they left behind has the same time to go.
  kill_at_ = cluster_.now() + cluster_.options().grace + kKillMargin;
  give_up_at_ = kill_at_ + kGiveUp;
  for (uint32_t i = 0; i < cluster_.size(); ++i) {
    if (cluster_.is_spare(NodeId(i))) LetGo(NodeId(i));
  }
  SendStop();
  LetGoOfAllDone();
}

// The shepherd knows how long that may go on. Only then the deadlines rise.
void StopPhase::OnSaving(const Event& event) {
  if (kill_at_ == kNever || cluster_.options().grace_limit <= Duration::zero()) return;
  kill_at_ = std::max(kill_at_, cluster_.now() + kSavingHolds);
  give_up_at_ = std::max(give_up_at_, kill_at_ + (cancelled_ ? kGiveUpCancelled : kGiveUp));
  if (cut_logs_at_ != kNever && cluster_.any_held()) cut_logs_at_ = give_up_at_;
  PassOnSaving(OfShepherd(event).node);
}

// Ranks elsewhere may wait for those that save: a checkpoint often ends with a barrier.
void StopPhase::PassOnSaving(NodeId from) {
  if (cluster_.now() < pass_on_saving_at_) return;
  pass_on_saving_at_ = cluster_.now() + kPassOnSavingAgain;
  std::vector<NodeId> others = cluster_.PlannedWithWork();
  std::erase(others, from);
  v1::JobRequest request;
  request.mutable_saving();
  out_.ToShepherds(std::move(others), std::move(request));
}

void StopPhase::SendStop() {
  const Duration grace = cluster_.options().grace;
  if (succeeded_) {
    // It may have waited, its own ranks gone, for those of others that used its key-value server.
    const NodeId master = cluster_.planned(cluster_.master());
    if (cluster_.plan().nodes.size() == 1 || !cluster_.has_work(master)) return;
    v1::JobRequest request = StopRequest(AtLeastOneMs(grace));
    request.mutable_stop()->set_all_ended(true);
    out_.ToShepherd(master) = std::move(request);
    return;
  }
  std::vector<NodeId> nodes = cluster_.PlannedWithWork();
  for (const NodeId node : nodes) cluster_.SetWaitingFor(node, "its workers to end");
  out_.ToShepherds(std::move(nodes),
                   StopRequest(grace <= Duration::zero() ? 0 : AtLeastOneMs(grace), cancelled_));
}

void StopPhase::Cancel(Verdict why) {
  const bool was_stopping = cluster_.state() == State::kStopping;
  const bool first = !std::exchange(cancelled_, true);
  Stop(std::move(why));
  if (cluster_.state() != State::kStopping) return;
  if (first && was_stopping && kill_at_ != kNever) {
    out_.ToShepherds(cluster_.PlannedWithWork(),
                     StopRequest(AtLeastOneMs(cluster_.options().grace), /*cancelled=*/true));
  }
  const TimePoint now = cluster_.now();
  give_up_at_ = std::min(give_up_at_, (kill_at_ == kNever ? now : kill_at_) + kGiveUpCancelled);
  if (cut_logs_at_ != kNever) return;
  cut_logs_at_ = cluster_.any_held() ? give_up_at_ : now + kLastOutput;
}

void StopPhase::OutputGone(Verdict why) {
  output_gone_ = true;
  Cancel(std::move(why));
  if (cluster_.state() == State::kStopping) LetGoOfAllDone();
}

void StopPhase::KillNow() {
  Kill();
  cut_logs_at_ = cluster_.any_held() ? give_up_at_ : cluster_.now();
}

void StopPhase::Kill() {
  kill_at_ = kNever;
  if (!cluster_.any_held()) return;
  std::vector<NodeId> nodes = cluster_.PlannedHeld();
  for (const NodeId node : nodes) {
    if (cluster_.has_work(node)) cluster_.SetWaitingFor(node, "its workers to end after KILL");
  }
  killed_at_ = cluster_.now();
  give_up_at_ = std::min(give_up_at_, killed_at_ + (cancelled_ ? kGiveUpCancelled : kGiveUp));
  out_.ToShepherds(nodes, StopRequest(0));
  // Its agent, too: the shepherd may not hear it.
  v1::SessionRequest end;
  end.mutable_end_job()->set_grace_ms(kLastGraceMs);
  out_.ToAgents(std::move(nodes), std::move(end));
}

void StopPhase::GiveUp() {
  give_up_at_ = kNever;
  std::string when;
  if (killed_at_ != kNever) {
    when = absl::StrCat(" ", FormatSeconds(cluster_.now() - killed_at_), " after KILL");
  }
  for (const NodeId node : cluster_.PlannedHeld()) {
    verdicts_.AddLeftBehind(
        node, cluster_.has_work(node)
                  ? absl::StrCat("it has not reported the end of its workers", when,
                                 "; check that host for leftover processes")
                  : absl::StrCat("its workers have ended, but it has not reported that their GPUs "
                                 "are free",
                                 when, "; check that host with nvidia-smi"));
    OnLost(node);
  }
  FinishIfAllGone();
}

void StopPhase::CutLogs() {
  cut_logs_at_ = kNever;
  std::vector<std::string> cut;
  for (uint32_t i = 0; i < cluster_.size(); ++i) {
    const NodeId node(i);
    if (cluster_.view(node).gone || !cluster_.node(node).ended) continue;
    cut.push_back(cluster_.host(node));
    LetGo(node);
  }
  if (!cut.empty()) {
    out_.Warn(absl::StrCat("did not wait for the last output of ", rendezvous::FormatHosts(cut)));
  }
  FinishIfAllGone();
}

void StopPhase::OnCleanupFailed(NodeId node, std::string why) {
  verdicts_.AddLeftBehind(node, std::move(why));
  give_up_at_ = std::min(give_up_at_, cluster_.now() + kGiveUpAfterCleanupFailed);
}

void StopPhase::OnRefused(NodeId node) {
  cluster_.SetEnded(node);
  cluster_.SetReleased(node);
  drained_[node.value()] = true;
}

void StopPhase::OnNothingLeft(NodeId node) {
  OnRefused(node);
  OnEnded(node);
}

void StopPhase::OnEnded(NodeId node) {
  LetGoIfDone(node);
  FinishIfAllGone();
}

// The agent's word, not the shepherd's: when a launcher comes back, either may come first. An agent
// tells each that comes back, so it may come twice.
absl::Status StopPhase::OnReleased(const Event& event) {
  const NodeId node = OfAgent(event).node;
  if (!cluster_.node(node).told_to_start) {
    if (cluster_.state() == State::kStopping) return absl::OkStatus();
    return absl::InvalidArgumentError("Released without a start");
  }
  cluster_.SetReleased(node);
  if (cluster_.node(node).ended) cluster_.SetWaitingFor(node, "");
  OnEnded(node);
  return absl::OkStatus();
}

void StopPhase::OnDrained(const Event& event) {
  const NodeId node = std::get<LogsDrained>(event).node;
  drained_[node.value()] = true;
  OnEnded(node);
}

void StopPhase::OnLost(NodeId node) { Drop(node, /*let_go=*/false); }

void StopPhase::Drop(NodeId node, bool let_go) {
  cluster_.SetGone(node, let_go);
  out_.Add(Disconnect{node});
}

void StopPhase::LetGo(NodeId node, bool lost) {
  if (cluster_.view(node).gone) return;
  // Also to one that has refused: a resident agent would keep its session for us.
  if (cluster_.node(node).connected) out_.ToAgent(node).mutable_goodbye();
  Drop(node, /*let_go=*/!lost);
}

void StopPhase::LetGoIfDone(NodeId node) {
  if (!cluster_.is_held(node) && (drained_[node.value()] || output_gone_)) LetGo(node);
}

void StopPhase::LetGoOfAllDone() {
  for (uint32_t i = 0; i < cluster_.size(); ++i) LetGoIfDone(NodeId(i));
  FinishIfAllGone();
}

void StopPhase::FinishIfAllGone() {
  if (cluster_.state() == State::kStopping && cluster_.all_gone()) Finish();
}

void StopPhase::Finish() {
  warnings_.Tell();
  verdicts_.Conclude(succeeded_);
  cluster_.Enter(State::kFinished);
  out_.Add(job::Finish{});
}

TimePoint StopPhase::NextDeadline() const {
  if (cluster_.state() != State::kStopping) return kNever;
  return std::min({kill_at_, give_up_at_, cut_logs_at_});
}

void StopPhase::OnDeadline() {
  const auto is_due = [this](TimePoint deadline) {
    return cluster_.state() == State::kStopping && cluster_.now() >= deadline;
  };
  if (is_due(kill_at_)) Kill();
  if (is_due(give_up_at_)) GiveUp();
  if (is_due(cut_logs_at_)) CutLogs();
}

}  // namespace dtrain::job
