// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/rank_watch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {
namespace {

constexpr size_t kMostHaltedNamed = 8;      // of ranks that do not run
constexpr size_t kMostUnfinishedNamed = 3;  // of those with an unfinished line

}  // namespace

// False when it names a rank of another node.
bool RankWatch::Record(const ShepherdMessage& message) {
  for (const v1::RankProgress& progress : message.event.progress().ranks()) {
    if (!ranks_.IsOf(progress.rank(), message.node)) return false;
    ranks_.SetProgress(progress);
    if (ranks_.at(progress.rank()).ended) continue;
    NoteHalt(message, progress);
    collectives_.OnProgress(cluster_.now(), progress);
  }
  return true;
}

absl::Status RankWatch::OnProgress(const Event& event) {
  if (!Record(OfShepherd(event))) {
    return absl::InvalidArgumentError("Progress of another node's rank");
  }
  CheckCollectives();
  if (cluster_.state() == State::kRunning) TellHalted();
  return absl::OkStatus();
}

// The counters of workers that are being ended are still worth having.
void RankWatch::OnLastProgress(const Event& event) { (void)Record(OfShepherd(event)); }

void RankWatch::OnEnded(uint32_t rank) { collectives_.OnEnded(rank); }

// A process that does not run since its node first saw it so.
void RankWatch::NoteHalt(const ShepherdMessage& message, const v1::RankProgress& progress) {
  const uint32_t rank = progress.rank();
  TimePoint since = ranks_.at(rank).halted_at;
  if (progress.process_state() == 0) {
    untold_.erase({since, rank});
    return ranks_.SetHaltedNever(rank);
  }
  if (since == kNever) {
    since = cluster_.now();
    untold_.emplace(since, rank);
  }
  ranks_.SetHalted(rank, since,
                   lease_watch_.ToOurs(message.node, progress.state_since_unix_nanos(),
                                       message.received_unix_nanos));
}

// "rank 3 on gpu02 (pid 123): stopped (T) since 14:03:05"
std::string RankWatch::HaltText(const RankEnd& end) const {
  const JobOptions& options = cluster_.options();
  const char letter = static_cast<char>(end.progress.process_state());
  std::string what = absl::StrCat("in state ", Escape(std::string(1, letter)));
  if (letter == 'T') what = "stopped (T)";
  if (letter == 't') what = "stopped by a debugger (t)";
  if (letter == 'D') what = "waiting in the kernel (D)";
  const int64_t since = end.halted_unix_nanos;
  return absl::StrCat(ranks_.Name(end.rank.value()), " (pid ", end.pid, "): ", what, " since ",
                      options.time_of_day ? options.time_of_day(since)
                                          : absl::FormatTime("%H:%M:%S", absl::FromUnixNanos(since),
                                                             absl::UTCTimeZone()));
}

std::string RankWatch::HaltedRanks() const {
  std::vector<std::string> texts;
  size_t more = 0;
  for (const RankEnd& end : ranks_.all()) {
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
void RankWatch::TellHalted() {
  const Duration patience = cluster_.options().collective_warning;
  if (patience <= Duration::zero()) return;
  std::vector<uint32_t> due;
  while (!untold_.empty() && cluster_.now() >= untold_.begin()->first + patience) {
    const auto [since, rank] = *untold_.begin();
    untold_.erase(untold_.begin());
    if (ranks_.at(rank).halted_at == since) due.push_back(rank);
  }
  if (due.empty()) return;
  std::sort(due.begin(), due.end());
  due.resize(std::min(due.size(), kMostHaltedNamed));
  std::vector<std::string> texts;
  for (const uint32_t rank : due) texts.push_back(HaltText(ranks_.at(rank)));
  out_.Warn(absl::StrJoin(texts, ", "));
}

// "rank 1 on node0 last wrote "(Pdb)"": others may wait for who is in no collective.
std::string RankWatch::UnfinishedLines() const {
  const JobOptions& options = cluster_.options();
  if (!options.unfinished_line) return "";
  const uint32_t first = options.elastic ? options.elastic->first_number() : 0;
  std::vector<std::string> texts;
  for (const bool inside : {false, true}) {
    for (const RankEnd& end : ranks_.all()) {
      if (texts.size() == kMostUnfinishedNamed) break;
      if (end.ended || end.progress.inside() != inside) continue;
      const std::string line = options.unfinished_line(first + end.rank.value());
      if (line.empty()) continue;
      texts.push_back(
          absl::StrCat(ranks_.Name(end.rank.value()), " last wrote \"", Escape(line), "\""));
    }
  }
  return absl::StrJoin(texts, ", ");
}

std::string RankWatch::WhereTheyAre() const {
  std::string text = absl::StrCat(ranks_.size() - ranks_.ended(), " of ",
                                  Count(ranks_.size(), "rank"), " still ran");
  for (const std::string& more : {HaltedRanks(), CollectiveText(), UnfinishedLines()}) {
    if (!more.empty()) absl::StrAppend(&text, "; ", more);
  }
  return text;
}

// "" when no rank is inside a collective for longer than one takes.
std::string RankWatch::CollectiveText() const {
  return collectives_.Explain(cluster_.now(), [this](uint32_t rank) { return ranks_.Name(rank); });
}

void RankWatch::CheckCollectives() {
  const JobOptions& options = cluster_.options();
  const TimePoint now = cluster_.now();
  const TimePoint since = collectives_.oldest();
  if (since == kNever) return;
  if (now >= After(since, options.collective_timeout)) {
    return Stalled(absl::StrCat(CollectiveText(), " (--collective-timeout ",
                                FormatSeconds(options.collective_timeout), ")"));
  }
  if (now < After(since, options.collective_warning) || warned_of_collective_ == since) return;
  warned_of_collective_ = since;
  const std::string unfinished = UnfinishedLines();
  out_.Warn(absl::StrCat(CollectiveText(), unfinished.empty() ? "" : "; ", unfinished,
                         options.collective_timeout == Duration::zero()
                             ? "; --collective-timeout TIME would end the job"
                             : ""));
}

void RankWatch::Stalled(std::string message) {
  for (const std::string& more : {HaltedRanks(), UnfinishedLines()}) {
    if (!more.empty()) absl::StrAppend(&message, "; ", more);
  }
  stop_.Stop({.kind = Verdict::Kind::kStalled,
              .exit_code = kExitStalled,
              .message = std::move(message),
              .rank = {},
              .signal = 0});
}

}  // namespace dtrain::job
