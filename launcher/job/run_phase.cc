// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/run_phase.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "launcher/job/blame.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {
namespace {

// Of the job's end, which we have not asked for yet.
bool IsToldToStop(const v1::WorkerExit& exit) { return exit.told_to_stop() && !exit.aborted(); }

}  // namespace

void RunPhase::Begin() {
  cluster_.Enter(State::kRunning);
  CheckAllEnded();
}

void RunPhase::CheckAllEnded() {
  if (cluster_.state() != State::kRunning || ranks_.ended() < ranks_.size()) return;
  std::string why = watches_.mpi.JudgeEnd();
  why.empty() ? stop_.Succeed() : watches_.ranks.Stalled(std::move(why));
}

// False when it was not a word about a living worker of that node.
bool RunPhase::Record(const ShepherdMessage& message) {
  const v1::WorkerExit& exit = message.event.exit();
  const int64_t ended =
      lease_watch_.ToOurs(message.node, exit.unix_nanos(), message.received_unix_nanos);
  if (!ranks_.SetEnd(message.node, exit, ended)) return false;
  watches_.ranks.OnEnded(exit.rank());
  watches_.mpi.OnRankEnded(exit.rank());
  return true;
}

absl::Status RunPhase::OnExit(const Event& event) {
  const ShepherdMessage& message = OfShepherd(event);
  const v1::WorkerExit& exit = message.event.exit();
  if (!Record(message)) {
    // A node says it again to whoever takes the job over.
    if (cluster_.options().generation > 1 && ranks_.IsOf(exit.rank(), message.node)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("WorkerExit of rank ", exit.rank()));
  }
  if (!HasFailed(exit)) {
    watches_.stalls.OnExit(exit.rank());
    CheckAllEnded();
  } else if (IsToldToStop(exit)) {
    // Not by us: the agent acted on its own lease, or somebody ended the agent.
    ended_unasked_ = message.node;
    if (!watches_.stalls.retelling()) OnAllRetold();
  } else if (std::string cause = watches_.mpi.CauseOf(exit); !cause.empty()) {
    watches_.ranks.Stalled(std::move(cause));
  } else {
    stop_.Stop(Cause::Failure(OrderOf(message), exit, message.received_unix_nanos));
  }
  return absl::OkStatus();
}

// What the launcher before us had ended the job for is among what it was told, and stands by now.
void RunPhase::OnAllRetold() {
  if (cluster_.state() == State::kRunning && ended_unasked_) {
    losses_.OnEndedUnasked(*ended_unasked_);
  }
}

void RunPhase::OnExitStopping(const Event& event) {
  const ShepherdMessage& message = OfShepherd(event);
  const v1::WorkerExit& exit = message.event.exit();
  if (!Record(message) || !HasFailed(exit)) return;
  if (!IsToldToStop(exit)) {
    stop_.Stop(Cause::Failure(OrderOf(message), exit, message.received_unix_nanos));
  } else if (own_pauses_.MayHaveEndedTheJob()) {
    own_pauses_.BlameForRank(OrderOf(message));
  }
}

// By when it happened. A worker that was struck down closes its connections before it can be
// reaped, and its neighbours may exit with an error of their own before that: within moments the
// one that was killed or crashed is the cause. An abort happened when it was asked for.
FailureOrder RunPhase::OrderOf(const ShepherdMessage& message) const {
  const v1::WorkerExit& exit = message.event.exit();
  const auto ours = [&](int64_t unix_nanos) {
    return lease_watch_.ToOurs(message.node, unix_nanos, message.received_unix_nanos);
  };
  if (exit.aborted()) return {ours(exit.abort_unix_nanos()), exit.rank()};
  const int64_t when = ours(exit.unix_nanos());
  return {IsStruckDown(exit) ? when - std::chrono::nanoseconds(kVerdictSettle).count() : when,
          exit.rank()};
}

void RunPhase::OnSign(const Event& event) {
  const auto& sign = std::get<SignSeen>(event);
  ranks_.SetSeen(sign.rank.value(), sign.seen);
}

absl::Status RunPhase::OnFinished(const Event& event) {
  const NodeId id = SenderOf(event);
  const Cluster::Node& node = cluster_.node(id);
  const bool stopping = cluster_.state() == State::kStopping;
  const bool early = !stopping && (ranks_.living_on(id) > 0 || !node.started);
  if (node.ended || early) {
    if (stopping || (node.ended && cluster_.options().generation > 1)) return absl::OkStatus();
    return absl::InvalidArgumentError("Finished with workers left");
  }
  cluster_.SetEnded(id);
  cluster_.SetWaitingFor(id, node.released ? "" : "its GPUs to be free");
  watches_.stalls.OnNodeEnded(id);
  if (!watches_.stalls.retelling()) OnAllRetold();
  stop_.OnEnded(id);
  return absl::OkStatus();
}

}  // namespace dtrain::job
