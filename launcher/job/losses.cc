// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/losses.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {

bool HasGivenUsUp(const NodeClosed& closed) {
  return absl::IsAborted(closed.why) || (absl::IsNotFound(closed.why) && !closed.started_anew);
}

bool IsStop(const v1::NodeFailure& failure) {
  return failure.kind() == v1::NodeFailure::KIND_UNSPECIFIED &&
         failure.exit_code() == kExitTerminated;
}

bool IsLeaving(const v1::NodeFailure& failure) {
  return failure.kind() == v1::NodeFailure::KIND_LEAVES;
}

void Losses::OnClosed(const Event& event) {
  const auto& closed = std::get<NodeClosed>(event);
  std::string why(closed.why.message());
  if (why.empty()) why = "its agent ended the session";
  if (cluster_.is_spare(closed.node)) {
    return LoseSpare(closed.node, own_pauses_.WithThem(Printable(why)), /*is_closed=*/true);
  }
  if (HasGivenUsUp(closed) && own_pauses_.Blame()) {
    stop_.OnLost(closed.node);
    return stop_.FinishIfAllGone();
  }
  const Cluster::Node& node = cluster_.node(closed.node);
  if (absl::IsNotFound(closed.why) && cluster_.options().generation > 1 &&
      (node.ended || !node.started)) {
    // The launcher before us had said goodbye there, or nothing had begun.
    return stop_.OnNothingLeft(closed.node);
  }
  if (absl::IsNotFound(closed.why)) {
    // An agent that came back without the job: its shepherd and workers are gone.
    return Lose(closed.node, Printable(why), closed.started_anew ? kExitNodeLost : kExitAgentLost,
                /*absent=*/true);
  }
  int exit_code = cluster_.state() == State::kStarting ? kExitStartAgents : kExitNodeLost;
  if (closed.not_authorised) exit_code = kExitNotAuthorised;
  LoseConnection(closed, Printable(why), exit_code);
}

void Losses::OnSilent(NodeId node, const std::string& why) {
  if (cluster_.is_spare(node)) return LoseSpare(node, own_pauses_.WithThem(why));
  LoseConnection({node, absl::UnavailableError(why)}, why, kExitNodeLost);
}

void Losses::OnShepherdSilent(NodeId node, Duration silence) {
  Fault(node,
        absl::StrCat("the shepherd, dtrain's process that owns the workers of this node, has said ",
                     "nothing for ", FormatSeconds(silence),
                     " while its agent answers: it was stopped, or hangs; its agent kills it and "
                     "the workers"),
        kExitAgentLost);
}

void Losses::LoseConnection(const NodeClosed& closed, const std::string& why, int exit_code) {
  const NodeId node = closed.node;
  const JobOptions& options = cluster_.options();
  std::string text =
      absl::StrCat(closed.output_lost ? "" : "the connection to its agent is lost: ", why);
  if (cluster_.node(node).ended) {
    absl::StrAppend(&text, "; its workers had ended, but ",
                    cluster_.node(node).released ? "not all of their output has arrived"
                                                 : "it has not reported that their GPUs are free");
  } else {
    absl::StrAppend(&text, "; it ends its workers by itself within ",
                    FormatSeconds(std::max(options.lease, options.away) + options.grace));
  }
  // One that breaks a rule is there.
  Lose(node, std::move(text), exit_code, /*absent=*/absl::IsUnavailable(closed.why));
}

// Where it still hears us, what it holds is free at once.
void Losses::LoseSpare(NodeId node, const std::string& why, bool is_closed) {
  if (is_closed) {
    stop_.OnLost(node);
  } else {
    stop_.LetGo(node, /*lost=*/true);
  }
  out_.Warn(absl::StrCat(cluster_.host(node), ", a spare, is lost: ", why,
                         "; it is tried again at the next restart"));
}

// A job that is being stopped goes on with the other nodes.
void Losses::Lose(NodeId node, std::string text, int exit_code, bool absent) {
  stop_.OnLost(node);
  const bool told = stop_.verdicts().is_own_pause() && ranks_.told_to_end(node);
  if (!told) {
    text = own_pauses_.WithThem(std::move(text));
    Cause cause = Cause::Fault(node, text, exit_code);
    cause.absent = absent && IsBeforeRun();
    if (ranks_.living_on(node) > 0) cause.silent_since = lease_watch_.last_heard(node);
    if (stop_.Stop(std::move(cause)) == Verdicts::Taken::kNot) {
      out_.Warn(absl::StrCat(cluster_.host(node), ": ", text));
    }
  }
  stop_.FinishIfAllGone();
}

void Losses::OnFailure(const Event& event) {
  const NodeId node = SenderOf(event);
  const v1::NodeFailure& failure = FailureOf(event);
  const std::string text = Printable(failure.message());
  if (cluster_.state() == State::kStopping && failure.kind() == v1::NodeFailure::KIND_CLEANUP) {
    return stop_.OnCleanupFailed(node, text);
  }
  if (IsStop(failure)) return OnStopAsked(node, text);
  if (cluster_.is_spare(node)) return LoseSpare(node, text);
  Cause cause = FaultOf(node, text, FailureExitCode(failure));
  cause.served_ranks =
      failure.kind() == v1::NodeFailure::KIND_HELPER && failure.exit_code() == kExitAgentLost;
  cause.absent = (cause.absent && !cause.served_ranks) || (IsLeaving(failure) && IsBeforeRun());
  cause.leaves = IsLeaving(failure);
  // All had ended well.
  if (cause.leaves && cluster_.state() == State::kStopping && stop_.verdicts().none()) return;
  const bool refused =
      failure.kind() == v1::NodeFailure::KIND_REFUSED && !cluster_.node(node).started;
  if (refused) stop_.OnRefused(node);
  const bool told = stop_.Stop(std::move(cause)) != Verdicts::Taken::kNot;
  // Whatever ended the job, its output must not pass for complete.
  if (!told && failure.kind() == v1::NodeFailure::KIND_STATE) {
    out_.Warn(absl::StrCat(cluster_.host(node), ": ", text));
  }
  if (refused) stop_.OnEnded(node);
}

// Of any node, a spare or one that is done, too. What this attempt ends for already stands.
void Losses::OnStopAsked(NodeId node, std::string text) {
  if (cluster_.state() < State::kStopping) {
    stop_.Stop(Cause::Fault(node, std::move(text), kExitTerminated));
  } else if (stopped_.empty()) {
    stopped_ = absl::StrCat(cluster_.host(node), ": ", text);
  }
}

void Losses::OnEndedUnasked(NodeId node) {
  if (own_pauses_.Blame()) return;
  Fault(node,
        "its agent ended the workers without being asked to: it had not heard from this launcher, "
        "or was itself stopped",
        kExitNodeLost);
}

void Losses::Fault(NodeId node, std::string text, int exit_code) {
  if (cluster_.is_spare(node)) return LoseSpare(node, text);
  stop_.Stop(FaultOf(node, std::move(text), exit_code));
}

bool Losses::IsBeforeRun() const {
  const std::vector<PhaseTime>& phases = cluster_.phases();
  return ranks_.ended() == 0 &&
         std::none_of(phases.begin(), phases.end(),
                      [](const PhaseTime& phase) { return phase.state == State::kRunning; });
}

Cause Losses::FaultOf(NodeId node, std::string text, int exit_code) const {
  Cause cause = Cause::Fault(node, std::move(text), exit_code);
  cause.same_start = cluster_.node(node).told_to_start && !cluster_.node(node).started;
  // Its shepherd was killed, or hangs.
  cause.absent = exit_code == kExitAgentLost && IsBeforeRun();
  return cause;
}

}  // namespace dtrain::job
