// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::hosts {

// A place in a text, both from 1; columns count bytes.
struct Position {
  uint32_t line = 1;
  uint32_t column = 1;

  Position Plus(size_t bytes) const { return {line, column + static_cast<uint32_t>(bytes)}; }
};

// What a text is called in messages: a file, or a one-line value of a flag or variable.
class Source {
 public:
  static Source File(absl::string_view name) { return Source(name, false); }
  static Source OneLine(absl::string_view name) { return Source(name, true); }

  const std::string& name() const { return name_; }
  // "line 3", or "column 3" of a one-line value.
  std::string Place(Position at) const;
  // `FILE:LINE:COL: what: "text"; advice`, the text escaped.
  absl::Status Error(Position at, absl::string_view what, absl::string_view text,
                     absl::string_view advice) const;

 private:
  Source(absl::string_view name, bool one_line);

  std::string name_;  // escaped
  bool one_line_;
};

// As dtrain::Escape, and bytes beyond ASCII as \xNN too: a look-alike letter must be seen.
std::string EscapeAscii(absl::string_view text);

// A whole number between `low` and `high`; `field` names it in the error.
absl::StatusOr<uint32_t> ParseNumber(const Source& source, Position at, absl::string_view field,
                                     absl::string_view text, uint32_t low, uint32_t high);

// Which agent a host's line asks for: one that ssh brings, or a resident one over TCP.
enum class Way { kUnsaid, kSsh, kTcp };

// What a `key=value` behind a host sets.
enum class Setting { kSlots, kMaxSlots, kUser, kPort, kGpus, kAgent };

// All spellings of Open MPI, MPICH and DeepSpeed; '-' and '_' are the same.
std::optional<Setting> FindSetting(absl::string_view key);

// "did you mean slots=?" when a key is near, else the list of keys.
std::string SettingAdvice(absl::string_view key);

// The words of a host file or rankfile: lines end with LF or CRLF, a byte order mark is skipped,
// `#` and `//` comment to the end of the line, `/* */` over lines. Borrows the text.
class LineReader {
 public:
  LineReader(const Source& source, absl::string_view text);

  // Goes to the next line that holds a word; false at the end of the text or in an error.
  bool NextLine();
  // An unclosed comment; to be asked when NextLine has returned false.
  absl::Status status() const { return status_; }

  // The rest of the line starts with a word, unless it is at its end.
  bool AtEnd() const { return column_ >= line_.size(); }
  char Peek() const { return AtEnd() ? '\0' : line_[column_]; }
  Position position() const { return Position{line_number_, 1}.Plus(column_); }
  // Takes the characters up to a blank or the first of `stops`, and the blanks behind them.
  absl::string_view Take(absl::string_view stops = "");
  // Takes `c` and the blanks behind it, if it is next.
  bool TakeChar(char c);

 private:
  void StripComments();
  void SkipBlanks();

  const Source& source_;
  absl::string_view rest_;
  absl::string_view line_;
  std::string without_comments_;  // what line_ points to when the line had one
  size_t column_ = 0;
  uint32_t line_number_ = 0;
  bool in_comment_ = false;
  Position comment_start_;
  absl::Status status_;
};

}  // namespace dtrain::hosts
