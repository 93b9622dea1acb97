// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/log_printer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
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

}  // namespace

LogPrinter::LogPrinter(const CommandOptions& options, bool of_another)
    : options_(options),
      is_terminal_(isatty(STDOUT_FILENO) == 1),
      shows_escapes_(of_another && !options.raw && is_terminal_) {}

LogPrinter::~LogPrinter() { Flush(); }

void LogPrinter::Flush(std::optional<Rank> rank) {
  for (auto& [id, open] : open_) {
    const detached::LogStream& stream = id;
    if (rank && *rank != stream.rank) continue;
    open.lines.Flush([&, nanos = open.unix_nanos](absl::string_view line, bool) {
      PrintLine(stream, line, /*ended=*/false, nanos);
    });
    std::string shown;
    for (char c : open.rest) output::AppendEscaped(c, shown);
    PrintBytes(stream, shown);
    open.rest.clear();
  }
}

bool LogPrinter::Add(const detached::LogStream& stream, absl::string_view piece,
                     int64_t unix_nanos) {
  Open& open = open_[stream];
  if (makes_lines()) {
    if (open.lines.pending() == 0) open.unix_nanos = unix_nanos;
    open.lines.Add(piece, [&](absl::string_view line, bool ended) {
      PrintLine(stream, line, ended, std::exchange(open.unix_nanos, unix_nanos));
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

void LogPrinter::PrintBytes(const detached::LogStream& stream, absl::string_view bytes) const {
  if (bytes.empty()) return;
  // One stream that was asked for is the answer.
  const bool apart = stream.is_stderr && !options_.stream && !has_tags() && !options_.json;
  if (!apart) return Print(std::string(bytes));
  (void)std::fflush(stdout);
  (void)std::fwrite(bytes.data(), 1, bytes.size(), stderr);
}

void LogPrinter::PrintLine(const detached::LogStream& stream, absl::string_view line, bool ended,
                           int64_t unix_nanos) const {
  if (options_.json) {
    nlohmann::ordered_json json = {{"rank", stream.rank.value()},
                                   {"stream", stream.is_stderr ? "stderr" : "stdout"},
                                   {"line", std::string(line)}};
    if (options_.timestamps) {
      json["unix_seconds"] = nullptr;
      if (unix_nanos != 0) json["unix_seconds"] = static_cast<double>(unix_nanos) / 1e9;
    }
    return Print(JsonText(json) + "\n");
  }
  std::string prefix;
  if (options_.timestamps) prefix = TimeBefore(unix_nanos);
  if (has_tags()) {
    absl::StrAppend(&prefix, "[", stream.rank.value(), stream.is_stderr ? " stderr] " : "] ");
  }
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
