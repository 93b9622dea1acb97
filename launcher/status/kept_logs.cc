// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/kept_logs.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "launcher/detached/log_reader.h"
#include "launcher/detached/log_segments.h"
#include "launcher/detached/log_times.h"
#include "launcher/status/log_printer.h"
#include "launcher/status/look_watch.h"
#include "launcher/status/tables.h"
#include "launcher/story/find.h"
#include "launcher/story/output.h"
#include "launcher/story/story.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;
using Streams = std::map<detached::LogStream, std::vector<detached::LogSegment>>;

constexpr int kKeptPollMs = 100;
constexpr size_t kPieceOfLog = 256 << 10;
constexpr Duration kBetweenCareLooks = std::chrono::seconds(1);
// systemd starts a launcher again after a second, a minder at once.
constexpr int kLooksWithoutLauncher = 4;

absl::Status CheckAttempt(const detached::JobFolder& job, const CommandOptions& options,
                          const std::vector<uint32_t>& attempts) {
  if (!options.attempt) return absl::OkStatus();
  if (std::find(attempts.begin(), attempts.end(), *options.attempt) != attempts.end()) {
    return absl::OkStatus();
  }
  return absl::NotFoundError(
      absl::StrCat(job.id(), " has no output of an attempt ", *options.attempt, ": ",
                   attempts.empty() ? std::string("there is none yet")
                   : attempts.size() == 1
                       ? absl::StrCat("only of attempt ", attempts[0])
                       : absl::StrCat("attempts ", attempts.front(), " to ", attempts.back())));
}

// The attempt behind `attempt`, if there is one by now.
std::optional<uint32_t> Following(const detached::JobFolder& job, std::optional<uint32_t> attempt) {
  const std::vector<uint32_t> attempts = story::AttemptsOf(job);
  if (!attempt) return attempts.empty() ? std::nullopt : std::optional(attempts.back());
  const auto at = std::upper_bound(attempts.begin(), attempts.end(), *attempt);
  return at == attempts.end() ? std::nullopt : std::optional(*at);
}

// Of a job that has ended: the rank that failed first.
std::optional<uint32_t> FirstFailed(const detached::JobFolder& job) {
  const auto text = job.ReadSummary();
  if (!text.ok()) return std::nullopt;
  const Json summary = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const Json& verdict = At(summary, "verdict");
  const Json& rank = At(verdict, "first_failed_rank");
  if (At(verdict, "kind") != Json("worker") || !rank.is_number_unsigned()) return std::nullopt;
  return rank.get<uint32_t>();
}

class KeptLogs {
 public:
  KeptLogs(const detached::JobFolder& job, const CommandOptions& options)
      : job_(job),
        options_(options),
        watch_(job.path()),
        printer_(options, watch_.Do([&] { return IsOfAnother(job.path()); })) {
    if (options.follow) printer_.ShowUnfinished();
  }

  absl::Status Print() {
    return watch_.Do([this] { return PrintAll(); });
  }
  absl::Status Finish() { return printer_.Finish(); }

 private:
  absl::Status PrintAll() {
    absl::Status status = CheckAttempt(job_, options_, story::AttemptsOf(job_));
    if (!status.ok()) return status;
    attempt_ = options_.attempt ? options_.attempt : Following(job_, std::nullopt);
    for (;;) {
      if (status = story::CheckThere(job_); !status.ok()) return status;
      const bool ended = job_.HasSummary();
      const std::optional<uint32_t> following = Following(job_, attempt_);
      if (!attempt_) attempt_ = following;
      if (attempt_ && !begun_ && (story::HasLayout(job_, *attempt_) || !options_.follow)) {
        if (status = Begin(); !status.ok()) return status;
      }
      const auto any = begun_ ? PrintNew() : absl::StatusOr<bool>(false);
      if (!any.ok()) return any.status();
      if (!open_) return absl::OkStatus();  // nobody reads on
      is_first_ = is_first_ && !begun_;
      if (*any) continue;
      if (!options_.follow) return absl::OkStatus();
      if (begun_ && following && following != attempt_) {
        if (options_.attempt) return absl::OkStatus();
        watch_.Pause([&] {
          printer_.Flush();
          std::fprintf(stderr, "dtrain: attempt %u\n", *following);
        });
        attempt_ = following;
        begun_ = false;
        continue;
      }
      if (ended) return absl::OkStatus();
      SayIfNobodyHasIt();
      const bool is_read = watch_.Pause([&] {
        if (!printer_.Look(Clock::now())) return false;
        poll(nullptr, 0, kKeptPollMs);
        return true;
      });
      if (!is_read) return absl::OkStatus();
    }
  }

  absl::Status Begin() {
    const size_t ranks = story::LayoutOf(job_, *attempt_).ranks.size();
    // Of an attempt that has written nothing it may not be known.
    if (options_.rank && ranks != 0 && *options_.rank >= ranks &&
        story::HasLayout(job_, *attempt_)) {
      return absl::NotFoundError(absl::StrCat(job_.id(), " has no rank ", *options_.rank,
                                              ": it has ", Count(ranks, "rank")));
    }
    folder_ = job_.LogFolder(*attempt_);
    if (options_.since_unix_nanos && detached::LogTimes::Read(folder_).empty() &&
        job_.HasSummary()) {
      return absl::NotFoundError(absl::StrCat("--since: when the output of ", job_.id(),
                                              " came was not recorded; leave --since out"));
    }
    // Of an earlier attempt only those are known that have written.
    const auto last = Following(job_, std::nullopt);
    printer_.SetRanks(std::max(ranks, story::LayoutOf(job_, last.value_or(0)).ranks.size()));
    readers_.clear();
    begun_ = true;
    return absl::OkStatus();
  }

  bool IsWanted(const detached::LogStream& stream) const {
    return (!options_.rank || *options_.rank == stream.rank.value()) &&
           (!options_.stream || (*options_.stream == "stderr") == stream.is_stderr);
  }

  // What was not printed yet. Whether there was anything.
  absl::StatusOr<bool> PrintNew() {
    std::optional<detached::LogStream> only;
    if (options_.rank && options_.stream) {
      only = detached::LogStream{Rank(*options_.rank), *options_.stream == "stderr"};
    }
    const auto streams = detached::ListSegments(folder_, only);
    if (!streams.ok()) return streams.status();
    std::vector<uint32_t> ranks;
    for (const auto& [stream, segments] : *streams) {
      if (!IsWanted(stream) || segments.empty()) continue;
      const auto reader = readers_.find(stream);
      if (reader != readers_.end() && reader->second.offset() >= segments.back().end()) continue;
      if (ranks.empty() || ranks.back() != stream.rank.value())
        ranks.push_back(stream.rank.value());
    }
    if (ranks.empty()) return false;
    times_ = detached::LogTimes::Read(folder_);
    if (job_.HasSummary() && !options_.attempt) {
      const auto failed = std::find(ranks.begin(), ranks.end(), FirstFailed(job_).value_or(~0u));
      if (failed != ranks.end()) std::rotate(ranks.begin(), failed, failed + 1);
    }
    bool any = false;
    for (const uint32_t rank : ranks) {
      const auto printed = PrintRank(Rank(rank), *streams);
      if (!printed.ok() || !open_) return printed;
      // Nothing follows.
      if (job_.HasSummary()) watch_.Pause([&] { printer_.Flush(Rank(rank)); });
      any = any || *printed;
    }
    return any;
  }

  // Where we begin with a stream.
  uint64_t FirstOf(const detached::LogStream& stream,
                   const std::vector<detached::LogSegment>& segments) const {
    uint64_t first = 0;
    if (options_.tail && is_first_) {
      first = story::BeginOfLast(folder_, stream, segments, *options_.tail, ~uint64_t{0});
    }
    if (options_.since_unix_nanos) {
      const uint64_t since = times_.FirstSince(stream, *options_.since_unix_nanos);
      first = std::max(first, std::min(since, segments.back().end()));
    }
    return first;
  }

  absl::StatusOr<bool> PrintRank(Rank rank, const Streams& streams) {
    bool any = false;
    for (const detached::LogTimes::Run& run : times_.RunsOf(rank)) {
      const auto at = streams.find(run.stream);
      if (at == streams.end() || at->second.empty() || !IsWanted(run.stream)) continue;
      auto reader = readers_.find(run.stream);
      if (reader == readers_.end()) {
        const uint64_t first = FirstOf(run.stream, at->second);
        reader =
            readers_.emplace(run.stream, detached::LogReader(folder_, run.stream, first)).first;
      }
      while (reader->second.offset() < run.end &&
             reader->second.offset() < at->second.back().end()) {
        const uint64_t left = run.end - reader->second.offset();
        const auto bytes = reader->second.Next(std::min<uint64_t>(kPieceOfLog, left));
        if (!bytes.ok()) return bytes.status();
        if (bytes->empty()) break;
        any = true;
        open_ = watch_.Pause([&] { return printer_.Add(run.stream, *bytes, run.unix_nanos); });
        if (!open_) return any;
      }
    }
    return any;
  }

  // What follows must not look as if the workers were silent.
  void SayIfNobodyHasIt() {
    const TimePoint now = Clock::now();
    if (now < next_look_) return;
    next_look_ = now + kBetweenCareLooks;
    const auto holder = job_.Holder();
    const auto minder = job_.Minder();
    if (!holder.ok() || *holder || !minder.ok() || *minder) {
      without_ = 0;
      looked_ = true;
      return;
    }
    // At the beginning there is none that was just killed.
    without_ += looked_ ? 1 : kLooksWithoutLauncher;
    looked_ = true;
    if (without_ < kLooksWithoutLauncher || said_) return;
    said_ = true;
    const std::optional<absl::Time> last = story::LastSign(job_);
    watch_.Pause([&] {
      printer_.MakeRoom();
      std::fprintf(
          stderr,
          "dtrain: %s has no launcher%s, so nothing new is shown; `dtrain attach %s` starts "
          "one, and the job continues\n",
          job_.id().c_str(),
          last ? absl::StrCat(" since ", story::ShownTime(absl::ToUnixNanos(*last))).c_str() : "",
          job_.id().c_str());
    });
  }

  const detached::JobFolder& job_;
  const CommandOptions& options_;
  LookWatch watch_;
  LogPrinter printer_;
  std::optional<uint32_t> attempt_;
  std::string folder_;
  bool begun_ = false;
  bool is_first_ = true;  // attempt that is shown
  bool open_ = true;
  detached::LogTimes times_;
  std::map<detached::LogStream, detached::LogReader> readers_;
  TimePoint next_look_{};
  int without_ = 0;
  bool looked_ = false;
  bool said_ = false;
};

}  // namespace

absl::Status PrintKeptLogs(const detached::JobFolder& job, const CommandOptions& options) {
  KeptLogs logs(job, options);
  absl::Status status = logs.Print();
  status.Update(logs.Finish());
  return status;
}

}  // namespace dtrain::status
