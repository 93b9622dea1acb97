// SPDX-License-Identifier: Apache-2.0
// What the ranks that live are doing, as far as they tell or their nodes see it: progress, ranks
// that do not run, collectives and fences that do not end.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/job/job_core_impl.h"

namespace dtrain::job {
namespace {

constexpr size_t kMostHaltedNamed = 8;  // of ranks that do not run

}  // namespace

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

}  // namespace dtrain::job
