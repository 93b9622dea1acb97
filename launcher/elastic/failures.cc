// SPDX-License-Identifier: Apache-2.0
#include "launcher/elastic/failures.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/exit_code.h"
#include "launcher/elastic/texts.h"
#include "launcher/job/outcome.h"

namespace dtrain::elastic {
namespace {

constexpr size_t kMostDepartures = 3;  // named in one line

// Of a run that was told to end, or whose workers all succeeded, nothing is to be learned.
bool SaysWhy(const job::Verdict& verdict) {
  using Kind = job::Verdict::Kind;
  return verdict.kind != Kind::kNone && verdict.kind != Kind::kSuccess &&
         verdict.kind != Kind::kSignal && !LeavesBehind(verdict);
}

}  // namespace

job::Verdict MakeVerdict(job::Verdict::Kind kind, int exit_code, std::string message) {
  job::Verdict verdict;
  verdict.kind = kind;
  verdict.exit_code = exit_code;
  verdict.message = std::move(message);
  return verdict;
}

Failure FailureOf(const WorkerEnded& ended, const Run& run) {
  Failure failure{ended.run, run.host, {}, ended.cause};
  failure.verdict = MakeVerdict(job::Verdict::Kind::kWorker, ended.exit_code);
  failure.verdict.rank = Rank(run.first_number + ended.local_rank);
  return failure;
}

Failure FailureOf(const RunOver& over, const Run& run) {
  Failure failure{over.run, run.host, over.verdict, over.cause};
  failure.verdict.rank = Rank(run.first_number + over.verdict.rank.value());
  failure.verdict.nodes.clear();  // of the run: the job has no such numbers
  return failure;
}

Failure Withdrawal(RunId id, const Run& run, uint32_t local_rank) {
  Failure failure{id, run.host, {}, ""};
  failure.cause = absl::StrCat("rank ", run.first_number + local_rank,
                               " exited with code 0 while it waited for the next round");
  failure.verdict = MakeVerdict(job::Verdict::Kind::kStalled, kExitStalled,
                                absl::StrCat(run.host, ": ", failure.cause));
  return failure;
}

Failure Absence(RunId id, const Run& run, Duration limit) {
  Failure failure{id, run.host, {}, LateText(run, limit)};
  failure.verdict = MakeVerdict(job::Verdict::Kind::kStartTimeout, kExitRendezvous,
                                absl::StrCat(run.host, ": ", failure.cause));
  return failure;
}

// A rank's own exit code may be 204, too.
bool LeavesBehind(const job::Verdict& verdict) {
  return verdict.left_behind ||
         (verdict.kind == job::Verdict::Kind::kNode && verdict.exit_code == kExitCleanup);
}

bool IsForTheUser(const job::Verdict& verdict) {
  return verdict.exit_code == kExitNotExecutable || verdict.exit_code == kExitNotFound ||
         verdict.exit_code == kExitNotAuthorised ||
         // Somebody has stopped the job by an agent.
         (verdict.kind == job::Verdict::Kind::kNode && verdict.exit_code == kExitTerminated);
}

Ending SuccessOfAll() { return {MakeVerdict(job::Verdict::Kind::kSuccess, 0), ""}; }

Ending StopBy(int signal, const std::string& from) {
  const std::string text = job::EndedBy(signal, from);
  Ending ending{MakeVerdict(job::Verdict::Kind::kSignal, kExitSignalBase + signal, text), text};
  ending.verdict.signal = signal;
  return ending;
}

Ending TimeIsUp(Duration limit) {
  const std::string text =
      absl::StrCat("the time limit of ", job::FormatSeconds(limit), " (--timeout) was reached");
  return {MakeVerdict(job::Verdict::Kind::kTimeLimit, kExitTimeLimit, text), text};
}

Ending TooLate(bool first_round, std::string text) {
  if (!first_round) return TooFew(false, std::move(text));
  return {MakeVerdict(job::Verdict::Kind::kStartTimeout, kExitRendezvous, text), text};
}

Ending TooFew(bool first_round, std::string text) {
  return {
      MakeVerdict(job::Verdict::Kind::kNode, first_round ? kExitRendezvous : kExitNodeLost, text),
      text};
}

void Failures::OnRound() {
  first_.reset();
  first_at_ = kNever;
}

void Failures::Add(TimePoint now, Failure failure, bool decides) {
  Leave(failure.host, failure.cause);
  if (first_ && !decides) return;
  first_ = std::move(failure);
  first_at_ = now;
}

void Failures::Leave(std::string host, std::string why) {
  departures_.push_back(absl::StrCat(host, " leaves the job: ", why));
  causes_.insert_or_assign(std::move(host), std::move(why));
}

// The first report of a rank's end may only be an effect of what its host reports at the end.
void Failures::OnOver(const RunOver& over, const Run& run) {
  dead_at_ = std::max(dead_at_, over.dead_at);
  if (LeavesBehind(over.verdict)) {
    left_behind_.push_back(over.verdict.message);
    causes_.insert_or_assign(run.host, "not all of its processes could be ended");
  }
  if (!first_ || first_->run != over.run || !SaysWhy(over.verdict)) return;
  const std::string cause = over.cause.empty() ? first_->cause : over.cause;
  *first_ = FailureOf(over, run);
  first_->cause = cause;
}

std::string Failures::CauseOf(const std::string& host) const {
  const auto cause = causes_.find(host);
  return cause == causes_.end() ? "" : cause->second;
}

std::string Failures::TakeDepartures() {
  const size_t more =
      departures_.size() > kMostDepartures ? departures_.size() - kMostDepartures : 0;
  departures_.resize(departures_.size() - more);
  std::string text = absl::StrJoin(departures_, "; ");
  if (more > 0) absl::StrAppend(&text, "; and ", more, " more");
  departures_.clear();
  return text;
}

EndElastic Failures::Conclude() const {
  EndElastic end;
  end.verdict = ending_.verdict;
  end.cause = ending_.cause;
  end.dead_at = dead_at_;
  if (ending_.verdict.kind == job::Verdict::Kind::kNone && first_) {
    end.verdict = first_->verdict;
    end.host = first_->host;
    end.cause = absl::StrCat(first_->host, ": ", first_->cause);
    if (!ending_.verdict.message.empty()) {
      if (!end.verdict.message.empty()) absl::StrAppend(&end.verdict.message, "\n");
      absl::StrAppend(&end.verdict.message, ending_.verdict.message);
    }
    if (ending_.verdict.exit_code != 0) {
      if (end.verdict.kind == job::Verdict::Kind::kWorker) {
        end.verdict.rank_code = end.verdict.exit_code;
      }
      end.verdict.exit_code = ending_.verdict.exit_code;
    }
  }
  for (const std::string& text : left_behind_) {
    end.verdict.exit_code = kExitCleanup;
    end.verdict.left_behind = true;
    if (end.verdict.kind == job::Verdict::Kind::kSuccess) {
      end.verdict.kind = job::Verdict::Kind::kNode;
      end.cause = "processes of the job may still be running";
    }
    if (absl::StrContains(end.verdict.message, text)) continue;
    if (!end.verdict.message.empty()) absl::StrAppend(&end.verdict.message, "\n");
    absl::StrAppend(&end.verdict.message, text);
  }
  return end;
}

}  // namespace dtrain::elastic
