// SPDX-License-Identifier: Apache-2.0
#include "agent/session/end_phase.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"

namespace dtrain::session {
namespace {

// For a shepherd to end its workers, beyond their grace.
constexpr Duration kOrphanLimit = std::chrono::seconds(10);
constexpr Duration kReapLimit = std::chrono::seconds(60);

}  // namespace

void EndPhase::OnAway() {
  lease_.OnAway();
  shepherd_.Excuse();
}

void EndPhase::OnGone() { life_.Finish(absl::AbortedError("the launcher is gone")); }

void EndPhase::Orphan() {
  lease_.GiveUp();
  life_.Become(SessionState::kOrphaned);
  const uint32_t grace_ms = life_.grace_ms();
  orphan_until_ = life_.now() + std::chrono::milliseconds(grace_ms) + kOrphanLimit;
  shepherd_.EndWorkers(grace_ms);
}

void EndPhase::OnUnheard() {
  if (!life_.is_detached()) return Orphan();
  lease_.Expire();
  orphan_until_ = life_.now() + std::chrono::milliseconds(life_.grace_ms()) + kOrphanLimit;
  shepherd_.EndWorkers(life_.grace_ms());
}

void EndPhase::OnOrphanEnd() {
  orphan_until_ = kNever;
  Reap("it did not end its workers in time");
}

void EndPhase::Leave() {
  if (life_.self().resumable) return Abandon();
  OnGone();
}

void EndPhase::OnEndJob(const Request& request) {
  release_.Hurry();
  shepherd_.EndWorkers(request.request.end_job().grace_ms());
}

// The launcher must hear of this before it hears of the workers' ends, or it takes these for the
// agent's own doing.
void EndPhase::OnStopAsked(const StopAsked& stop) {
  lease_.OnStopAsked(stop);
  shepherd_.EndWorkers(life_.grace_ms());
}

void EndPhase::OnKeepJob() { life_.Do(PrepareToBeLeft{}); }

void EndPhase::OnReady(const ReadyToBeLeft& ready) {
  if (ready.refused.empty()) life_.SetKept();
  if (lease_.given_up()) return;
  v1::SessionEvent up;
  up.mutable_kept()->set_refused(ready.refused);
  *up.mutable_kept()->mutable_sent() = ready.sent;
  lease_.Tell(std::move(up));
}

void EndPhase::OnJobEnded(const JobEnded& ended) {
  finished_ = ended.finished;
  release_.Begin();
}

void EndPhase::Reap(std::string why) {
  life_.SetLost();
  shepherd_gone_ = true;
  shepherd_end_ = std::move(why);
  life_.Become(SessionState::kReaping);
  reap_until_ = life_.now() + kReapLimit;
  life_.Do(KillLeftovers{});
}

// Once. The launcher may be away, or still to read what the shepherd said.
void EndPhase::OnShepherdGoneLate() {
  if (std::exchange(shepherd_gone_, true)) return;
  life_.SetLost();
  if (life_.self().resumable && !lease_.given_up()) TellFinished();
}

// Only now may the launcher hear of it: it says goodbye at once, and the agent ends with that.
void EndPhase::OnLeftoversGone() {
  if (!lease_.given_up()) {
    lease_.Fail(v1::NodeFailure::KIND_SHEPHERD_LOST, kExitAgentLost,
                absl::StrCat("the shepherd, dtrain's process that owns the workers of this node, ",
                             "is gone: ", shepherd_end_, "; its workers have been killed"));
    TellFinished();  // no log sizes are known any more
  }
  release_.Begin();
}

void EndPhase::OnAnswerDue() {
  if (!shepherd_.answered()) return Reap("it did not answer the request to end its workers");
  shepherd_.AskAgain();  // which it does already
}

void EndPhase::OnReapEnd() {
  reap_until_ = kNever;
  life_.Do(SkipContainers{});
}

// Once the shepherd does not say so, or may not have.
void EndPhase::TellFinished() {
  v1::SessionEvent up;
  *up.mutable_finished() = finished_;
  lease_.Tell(std::move(up));
}

}  // namespace dtrain::session
