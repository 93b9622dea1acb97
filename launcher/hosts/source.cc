// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/source.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"

namespace dtrain::hosts {

Source::Source(absl::string_view name, bool one_line)
    : name_(Escape(name, 4096)), one_line_(one_line) {}

std::string Source::Place(Position at) const {
  return one_line_ ? absl::StrCat("column ", at.column) : absl::StrCat("line ", at.line);
}

absl::Status Source::Error(Position at, absl::string_view what, absl::string_view text,
                           absl::string_view advice) const {
  std::string place = one_line_ ? absl::StrCat(name_, ", column ", at.column)
                                : absl::StrCat(name_, ":", at.line, ":", at.column);
  return absl::InvalidArgumentError(
      absl::StrCat(place, ": ", what, ": \"", EscapeAscii(text), "\"; ", advice));
}

std::string EscapeAscii(absl::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  constexpr size_t kLimit = 100;  // enough to recognise the place, short enough for one line
  bool cut = text.size() > kLimit;
  std::string out;
  for (char c : text.substr(0, kLimit)) {
    auto byte = static_cast<uint8_t>(c);
    if (byte < 0x80) {
      out += Escape(absl::string_view(&c, 1));
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return cut ? out + "..." : out;
}

absl::StatusOr<uint32_t> ParseNumber(const Source& source, Position at, absl::string_view field,
                                     absl::string_view text, uint32_t low, uint32_t high) {
  uint64_t value = 0;
  bool ok = !text.empty();
  for (char c : text) {
    ok = ok && absl::ascii_isdigit(c);
    if (!ok) break;
    // Stays above `high` once it is, however many digits follow.
    if (value <= high) value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  if (ok && value >= low && value <= high) return static_cast<uint32_t>(value);
  absl::string_view fault = text.empty() ? " has no value"
                            : ok         ? " is out of range"
                                         : " is not a whole number";
  return source.Error(at, absl::StrCat(field, fault), text,
                      absl::StrCat("give a number from ", low, " to ", high));
}

namespace {

struct Spelling {
  absl::string_view key;
  Setting setting;
};

// SettingAdvice suggests the first of equally near keys, so gpus= stands before cpu=.
constexpr Spelling kSpellings[] = {
    {"gpus", Setting::kGpus},           {"agent", Setting::kAgent},
    {"slots", Setting::kSlots},         {"slot", Setting::kSlots},
    {"count", Setting::kSlots},         {"counts", Setting::kSlots},
    {"cpu", Setting::kSlots},           {"cpus", Setting::kSlots},
    {"max_slots", Setting::kMaxSlots},  {"max_slot", Setting::kMaxSlots},
    {"slots_max", Setting::kMaxSlots},  {"slot_max", Setting::kMaxSlots},
    {"max_cpus", Setting::kMaxSlots},   {"max_cpu", Setting::kMaxSlots},
    {"cpus_max", Setting::kMaxSlots},   {"cpu_max", Setting::kMaxSlots},
    {"max_counts", Setting::kMaxSlots}, {"max_count", Setting::kMaxSlots},
    {"counts_max", Setting::kMaxSlots}, {"count_max", Setting::kMaxSlots},
    {"user", Setting::kUser},           {"username", Setting::kUser},
    {"user_name", Setting::kUser},      {"port", Setting::kPort},
};

// Insertions, deletions, replacements and swaps of neighbours between two short words.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> table(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      size_t& best = table[i][j];
      if (i == 0 || j == 0) {
        best = i + j;
        continue;
      }
      best = std::min({table[i - 1][j] + 1, table[i][j - 1] + 1,
                       table[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        best = std::min(best, table[i - 2][j - 2] + 1);
      }
    }
  }
  return table.back().back();
}

}  // namespace

std::optional<Setting> FindSetting(absl::string_view key) {
  constexpr size_t kLongest = 16;
  if (key.size() > kLongest) return std::nullopt;
  std::string normal = absl::StrReplaceAll(key, {{"-", "_"}});
  for (const Spelling& spelling : kSpellings) {
    if (spelling.key == normal) return spelling.setting;
  }
  return std::nullopt;
}

std::string SettingAdvice(absl::string_view key) {
  constexpr size_t kNear = 2;
  constexpr size_t kLongest = 16;
  absl::string_view nearest;
  size_t best = kNear + 1;
  for (const Spelling& spelling : kSpellings) {
    if (key.size() > kLongest) break;
    // A word of which more than half is gone is another word.
    size_t distance = Distance(key, spelling.key);
    if (distance < best && distance * 2 <= spelling.key.size()) {
      best = distance;
      nearest = spelling.key;
    }
  }
  if (!nearest.empty()) return absl::StrCat("did you mean ", nearest, "=?");
  return "known keys are slots=, max_slots=, port=, user=, gpus= and agent=";
}

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
