// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/verdicts.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "launcher/job/blame.h"
#include "launcher/job/left_early.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {
namespace {

// A rank that asked for the job's abort is given 200 ms by its shepherd to end by itself: its
// neighbours may have failed, and have been told, long before that.
constexpr Duration kAbortSettle = std::chrono::milliseconds(300);

// A server of ranks that dies makes them fail, and a loaded node may take its time to tell of it.
constexpr Duration kServerSettle = std::chrono::seconds(1);

// From a program's last line until it has ended: it unloads its libraries.
constexpr int64_t kLastWords = 5'000'000'000;

}  // namespace

// What beats what. Whatever stands at the end, workers that may be left behind make the exit code
// 204: that is what the user must act on.
// clang-format off
const Verdicts::Rule Verdicts::kRules[5][4] = {
    // offered:        failure           fault                own pause        other
    /* none        */ {Rule::kTake,       Rule::kTake,         Rule::kTake,     Rule::kTake},
    /* failure     */ {Rule::kIfEarlier,  Rule::kIfItExplains, Rule::kIfBefore, Rule::kDrop},
    /* fault       */ {Rule::kDrop,       Rule::kIfTogether,   Rule::kDrop,     Rule::kDrop},
    /* own pause   */ {Rule::kDrop,       Rule::kDrop,         Rule::kDrop,     Rule::kDrop},
    /* other       */ {Rule::kDrop,       Rule::kDrop,         Rule::kDrop,     Rule::kDrop},
};
// clang-format on

Cause Cause::Other(Verdict verdict) {
  Cause cause;
  cause.verdict = std::move(verdict);
  return cause;
}

Cause Cause::Failure(FailureOrder order, const v1::WorkerExit& exit, int64_t heard_unix_nanos) {
  Cause cause;
  cause.kind = Kind::kFailure;
  cause.verdict.kind = Verdict::Kind::kWorker;
  cause.verdict.exit_code = WorkerExitCode(exit);
  cause.verdict.rank = Rank(exit.rank());
  cause.order = order;
  cause.aborted = exit.aborted();
  cause.heard_unix_nanos = heard_unix_nanos;
  return cause;
}

Cause Cause::OwnPause(std::string message) {
  Cause cause;
  cause.kind = Kind::kOwnPause;
  cause.verdict.kind = Verdict::Kind::kNode;
  cause.verdict.exit_code = kExitNodeLost;
  cause.verdict.message = std::move(message);
  return cause;
}

Cause Cause::Fault(NodeId node, std::string text, int exit_code) {
  Cause cause;
  cause.kind = Kind::kFault;
  cause.verdict.kind = Verdict::Kind::kNode;
  cause.verdict.exit_code = exit_code;
  cause.node = node;
  cause.text = std::move(text);
  return cause;
}

Verdicts::Taken Verdicts::Offer(Cause cause) {
  switch (kRules[static_cast<size_t>(stands_)][static_cast<size_t>(cause.kind)]) {
    case Rule::kTake:
      Take(std::move(cause));
      return Taken::kFirst;
    case Rule::kDrop:
      return Taken::kNot;
    case Rule::kIfEarlier:
      if (!IsEarlier(cause)) return Taken::kNot;
      first_failure_ = cause.order;
      verdict_ = std::move(cause.verdict);
      return Taken::kToo;
    case Rule::kIfItExplains:
      if (!Explains(cause)) return Taken::kNot;
      absl::StrAppend(&cause.text, "; ", ranks_.Name(verdict_.rank.value()),
                      " failed after that, with exit code ", verdict_.exit_code);
      Take(std::move(cause));
      return Taken::kToo;
    case Rule::kIfTogether:
      if (!IsTogether(cause)) return Taken::kNot;
      AddFault(cause);
      return Taken::kToo;
    case Rule::kIfBefore:
      if (!IsBefore(cause)) return Taken::kNot;
      Take(std::move(cause));
      return Taken::kToo;
  }
  return Taken::kNot;
}

void Verdicts::Take(Cause cause) {
  switch (cause.kind) {
    case Cause::Kind::kFailure:
      stands_ = Stands::kFailure;
      first_failure_ = cause.order;
      stopped_unix_nanos_ = cause.heard_unix_nanos;
      open_until_ = cluster_.now() + kVerdictSettle;
      break;
    case Cause::Kind::kFault:
      stands_ = Stands::kFault;
      open_until_ = cluster_.now() + kVerdictSettle;
      AddFault(cause);
      break;
    case Cause::Kind::kOwnPause:
      stands_ = Stands::kOwnPause;  // what else is lost has a line of its own
      break;
    case Cause::Kind::kOther:
      stands_ = Stands::kOther;
      break;
  }
  verdict_ = std::move(cause.verdict);
}

void Verdicts::AddFault(const Cause& cause) {
  faults_.Add(cause.node, cause.text, cause.verdict.exit_code);
  all_absent_ = all_absent_ && cause.absent;
  all_leave_ = all_leave_ && cause.leaves;
}

bool Verdicts::IsEarlier(const Cause& cause) const {
  const Duration later = cause.aborted ? kAbortSettle - kVerdictSettle : Duration::zero();
  return cluster_.now() <= open_until_ + later && cause.order < first_failure_;
}

// Of a rank's failure that was told while this node had fallen silent for good: its neighbours
// fail when its workers end or their connections break, before its lease is over. Or a server of
// the ranks has died, and one that was using it was heard first. Or a whole machine was told to go
// down, and ranks were heard before dtrain.
bool Verdicts::Explains(const Cause& cause) const {
  return cause.silent_since < open_until_ - kVerdictSettle ||
         ((cause.served_ranks || cause.leaves) &&
          cluster_.now() <= open_until_ - kVerdictSettle + kServerSettle);
}

// Those that come right behind the first. All nodes were told to start: one that could not either
// tells so, however late it answers. And of nodes that are lost for one reason, what lies between
// takes them all, however long each needs to see it.
bool Verdicts::IsTogether(const Cause& cause) const {
  return cluster_.now() <= open_until_ || cause.same_start || faults_.Has(cause.text);
}

// A rank was told to stop before we told anybody: the others failed as that one was gone.
bool Verdicts::IsBefore(const Cause& cause) const {
  return cause.order.first <
         first_failure_.first + std::chrono::nanoseconds(kVerdictSettle).count();
}

void Verdicts::AddLeftBehind(NodeId node, std::string text) {
  left_behind_.Add(node, std::move(text), kExitCleanup);
}

void Verdicts::Conclude(bool succeeded) {
  // Only now, when all are known: it names thousands of nodes at times.
  if (stands_ == Stands::kFault) {
    verdict_.message = faults_.Text("several nodes failed:", cluster_);
    verdict_.nodes = faults_.Nodes();
    verdict_.absent = all_absent_;
    verdict_.leaves = all_leave_;
  }
  if (stands_ == Stands::kFailure) {
    const Rank first = std::exchange(
        verdict_.rank,
        Blame(ranks_.all(), verdict_.rank, first_failure_.first, stopped_unix_nanos_));
    const RankEnd& blamed = ranks_.at(verdict_.rank.value());
    if (first != verdict_.rank) {
      verdict_.exited_first = first;
      verdict_.exit_code = BlamedExitCode(blamed);
    }
    verdict_.nodes = {blamed.node};
    if (EndedByItself(blamed) && blamed.exit.signal() == 0 &&
        blamed.ended_unix_nanos <= blamed.seen.mistake_unix_nanos + kLastWords) {
      verdict_.mistake = blamed.seen.mistake;
    }
    for (const auto& [signal, from] : passed_on_) {
      const bool of_it = blamed.exit.signal() == signal ||
                         blamed.exit.exit_code() == kExitSignalBase + signal;  // a shell's word
      if (of_it && EndedByItself(blamed)) verdict_.passed_on = {signal, from};
    }
    if (HasLostPeer(blamed, stopped_unix_nanos_)) {
      verdict_.message = LeftEarly(ranks_.all(), blamed.rank);
    }
  }
  if (none() && succeeded && left_behind_.empty()) verdict_.kind = Verdict::Kind::kSuccess;
  if (left_behind_.empty()) return;
  if (none()) verdict_.kind = Verdict::Kind::kNode;
  if (!verdict_.message.empty()) verdict_.message += "\n";
  verdict_.message += left_behind_.Text("some workers may still be running:", cluster_);
  verdict_.exit_code = kExitCleanup;
  verdict_.left_behind = true;
  verdict_.absent = verdict_.leaves = false;
}

}  // namespace dtrain::job
