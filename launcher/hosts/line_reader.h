// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/hosts/source.h"

namespace dtrain::hosts {

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
