// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/log_printer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/posix_error.h"
#include "dtrain/v1/job.pb.h"
#include "launcher/output/router.h"
#include "launcher/output/standing_text.h"
#include "launcher/output/tagger.h"
#include "launcher/output/terminal_text.h"
#include "launcher/status/print.h"

namespace dtrain::status {
namespace {

// As wide as a time.
constexpr absl::string_view kNoTime = "-                       ";

std::string TimeBefore(int64_t unix_nanos) {
  if (unix_nanos == 0) return std::string(kNoTime);
  return output::TimePrefix(absl::FromUnixNanos(unix_nanos), absl::LocalTimeZone());
}

std::string TagOf(const detached::LogStream& stream) {
  return absl::StrCat("[", stream.rank.value(), stream.is_stderr ? " stderr] " : "] ");
}

output::Display::StreamId IdOf(const detached::LogStream& stream) {
  return {stream.rank.value(), stream.is_stderr ? v1::STREAM_KIND_STDERR : v1::STREAM_KIND_STDOUT};
}

}  // namespace

LogPrinter::LogPrinter(const CommandOptions& options, bool of_another)
    : options_(options),
      is_terminal_(isatty(STDOUT_FILENO) == 1),
      shows_escapes_(of_another && !options.raw && is_terminal_) {}

LogPrinter::~LogPrinter() { Flush(); }

void LogPrinter::ShowUnfinished() {
  looks_ = options_.json;
  if (looks_) return;
  // --raw: a terminal gets what a pipe would.
  display_.emplace(options_.raw && is_terminal_ ? output::Display::Kind::kPipe
                                                : output::KindOf(STDOUT_FILENO));
  display_->SetSharing({2, /*folds=*/false, /*passes=*/false, shows_escapes_});
}

void LogPrinter::Flush(std::optional<Rank> rank) {
  for (auto& [id, its] : open_) {
    const detached::LogStream& stream = id;
    Open& open = its;
    if (rank && *rank != stream.rank) continue;
    if (display_) display_->End(IdOf(stream), {Clock::now(), TimeOf(open.unix_nanos)});
    open.lines.Flush([&](absl::string_view line, bool) {
      PrintLine(stream, line, /*ended=*/false, open.unix_nanos, open.begun);
    });
    open.begun = false;
    std::string shown;
    for (char c : open.rest) output::AppendEscaped(c, shown);
    PrintBytes(stream, shown);
    open.rest.clear();
  }
  if (!display_) return;
  Draw(Clock::now());
  (void)std::fflush(stdout);
}

absl::Status LogPrinter::Finish() {
  Flush();
  if (stderr_error_ == 0) return absl::OkStatus();
  return absl::DataLossError(PosixError(stderr_error_, "write to stderr").message());
}

void LogPrinter::MakeRoom() {
  if (display_ && is_terminal_) Flush();
}

// A progress bar that is drawn all the time is never quiet.
void LogPrinter::PrintUnfinished(TimePoint now) {
  using output::Display;
  for (auto& [stream, open] : open_) {
    const TimePoint due = std::min(open.added + Display::kQuiet, open.since + Display::kElsewhere);
    if (open.lines.pending() == 0 || open.told >= open.added) continue;
    if (now < std::max(due, open.told + Display::kElsewhere)) continue;
    open.told = now;
    const std::string line = output::UnfinishedLine(open.lines.open());
    if (!line.empty()) PrintObject(stream, line, open.unix_nanos, /*unfinished=*/true);
  }
}

bool LogPrinter::Look(TimePoint now) {
  if (looks_) {
    PrintUnfinished(now);
    return std::fflush(stdout) == 0;
  }
  if (!display_) return true;
  Draw(now);
  // The lines of one rank with times (-t) do not go through the display.
  for (auto& [stream, open] : open_) {
    if (open.lines.pending() == 0 || now < open.added + output::Display::kQuiet) continue;
    const std::string begin = open.lines.TakeOpen();
    PrintLine(stream, begin, /*ended=*/false, open.unix_nanos, std::exchange(open.begun, true));
  }
  return std::fflush(stdout) == 0;
}

bool LogPrinter::Add(const detached::LogStream& stream, absl::string_view piece,
                     int64_t unix_nanos) {
  Open& open = open_[stream];
  if (display_ && has_tags()) {
    AddToDisplay(stream, open, piece, unix_nanos);
  } else if (makes_lines()) {
    open.added = Clock::now();
    if (open.lines.pending() == 0) {
      open.unix_nanos = unix_nanos;
      open.since = open.added;
    }
    open.lines.Add(piece, [&](absl::string_view line, bool ended) {
      open.since = open.added;
      PrintLine(stream, line, ended, std::exchange(open.unix_nanos, unix_nanos),
                std::exchange(open.begun, false));
    });
  } else if (shows_escapes_) {
    const std::string text = absl::StrCat(std::exchange(open.rest, {}), piece);
    std::string shown;
    const size_t cut = output::AppendForOthers(text, shown);
    open.rest = text.substr(text.size() - cut);
    PrintBytes(stream, shown);
  } else {
    PrintBytes(stream, piece);
  }
  return std::fflush(stdout) == 0;
}

void LogPrinter::AddToDisplay(const detached::LogStream& stream, Open& open,
                              absl::string_view piece, int64_t unix_nanos) {
  const TimePoint now = Clock::now();
  const auto tag = [&] { return TagOf(stream); };
  last_nanos_ = std::max(last_nanos_, unix_nanos);
  if (open.begun) {
    // The rest of a line has the time at which the line began.
    const size_t end = piece.find('\n');
    const size_t size = end == absl::string_view::npos ? piece.size() : end + 1;
    display_->Add(IdOf(stream), tag, piece.substr(0, size), {now, TimeOf(open.unix_nanos)});
    open.begun = end == absl::string_view::npos;
    piece.remove_prefix(size);
  }
  if (!piece.empty()) {
    display_->Add(IdOf(stream), tag, piece, {now, TimeOf(unix_nanos)});
    open.begun = piece.back() != '\n';
    open.unix_nanos = unix_nanos;
  }
  Draw(now);
}

void LogPrinter::Draw(TimePoint now) {
  Print(display_->Take({now, TimeOf(last_nanos_)}, [] { return output::SizeOf(STDOUT_FILENO); }));
}

std::string LogPrinter::TimeOf(int64_t unix_nanos) const {
  return options_.timestamps ? TimeBefore(unix_nanos) : "";
}

void LogPrinter::PrintBytes(const detached::LogStream& stream, absl::string_view bytes) {
  if (bytes.empty()) return;
  // One stream that was asked for is the answer.
  const bool apart = stream.is_stderr && !options_.stream && !has_tags() && !options_.json;
  if (!apart) return Print(std::string(bytes));
  (void)std::fflush(stdout);
  if (std::fwrite(bytes.data(), 1, bytes.size(), stderr) == bytes.size()) return;
  // A reader that left has what he wants.
  if (stderr_error_ == 0 && errno != EPIPE) stderr_error_ = errno;
}

void LogPrinter::PrintObject(const detached::LogStream& stream, absl::string_view line,
                             int64_t unix_nanos, bool unfinished) {
  nlohmann::ordered_json json = {{"rank", stream.rank.value()},
                                 {"stream", stream.is_stderr ? "stderr" : "stdout"},
                                 {"line", std::string(line)}};
  if (options_.timestamps) {
    json["unix_seconds"] = nullptr;
    if (unix_nanos != 0) json["unix_seconds"] = static_cast<double>(unix_nanos) / 1e9;
  }
  if (unfinished) json["unfinished"] = true;
  Print(JsonText(json) + "\n");
}

void LogPrinter::PrintLine(const detached::LogStream& stream, absl::string_view line, bool ended,
                           int64_t unix_nanos, bool begun) {
  if (options_.json) return PrintObject(stream, line, unix_nanos, /*unfinished=*/false);
  std::string prefix;
  if (!begun) prefix = absl::StrCat(TimeOf(unix_nanos), has_tags() ? TagOf(stream) : "");
  std::string out;
  if (shows_escapes_) {
    out = prefix;
    const size_t cut = output::AppendForOthers(line, out);
    for (const char c : line.substr(line.size() - cut)) output::AppendEscaped(c, out);
  } else if (is_terminal_ && has_tags() && !options_.raw) {
    output::AppendForTerminal(line, prefix, out);
  } else {
    out = absl::StrCat(prefix, line);
  }
  // Of several ranks the next line begins a line of its own.
  if (ended || has_tags()) out += '\n';
  PrintBytes(stream, out);
}

bool IsOfAnother(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0 && status.st_uid != geteuid();
}

}  // namespace dtrain::status
