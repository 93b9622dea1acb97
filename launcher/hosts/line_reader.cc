// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/line_reader.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"

namespace dtrain::hosts {
LineReader::LineReader(const Source& source, absl::string_view text)
    : source_(source), rest_(absl::StripPrefix(text, "\xEF\xBB\xBF")) {}

bool LineReader::NextLine() {
  while (!rest_.empty()) {
    size_t end = std::min(rest_.find('\n'), rest_.size());
    line_ = absl::StripSuffix(rest_.substr(0, end), "\r");
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++line_number_;
    column_ = 0;
    StripComments();
    SkipBlanks();
    if (!AtEnd()) return true;
  }
  if (in_comment_) {
    status_ = source_.Error(comment_start_, "comment is never closed", "/*", "close it with */");
  }
  return false;
}

void LineReader::StripComments() {
  if (!in_comment_ && line_.find_first_of("#/") == absl::string_view::npos) return;
  // Blanks instead of comments, so that columns stay true.
  without_comments_.assign(line_.size(), ' ');
  for (size_t i = 0; i < line_.size(); ++i) {
    absl::string_view here = line_.substr(i, 2);
    if (in_comment_) {
      if (here != "*/") continue;
      in_comment_ = false;
      ++i;
    } else if (here == "/*") {
      in_comment_ = true;
      comment_start_ = Position{line_number_, 1}.Plus(i);
      ++i;
    } else if (here.front() == '#' || here == "//") {
      break;
    } else {
      without_comments_[i] = line_[i];
    }
  }
  line_ = without_comments_;
}

void LineReader::SkipBlanks() {
  while (!AtEnd() && absl::ascii_isblank(line_[column_])) ++column_;
}

absl::string_view LineReader::Take(absl::string_view stops) {
  size_t start = column_;
  while (!AtEnd() && !absl::ascii_isblank(line_[column_]) &&
         stops.find(line_[column_]) == absl::string_view::npos) {
    ++column_;
  }
  absl::string_view word = line_.substr(start, column_ - start);
  SkipBlanks();
  return word;
}

bool LineReader::TakeChar(char c) {
  if (AtEnd() || line_[column_] != c) return false;
  ++column_;
  SkipBlanks();
  return true;
}

}  // namespace dtrain::hosts
