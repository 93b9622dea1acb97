// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/standing_text.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/output/character_width.h"
#include "launcher/output/terminal_text.h"

namespace dtrain::output {
namespace {

// A sequence that is longer is none.
constexpr size_t kLongestSequence = 64;
constexpr size_t kTabStop = 8;
constexpr size_t kMostStyles = 256;
constexpr size_t kLongestStyle = 256;
constexpr size_t kMostMarks = 32;  // bytes on one character
// A program that has finished so many lines without going up no longer draws several.
constexpr size_t kCalm = 20;
constexpr absl::string_view kNoStyle = "\033[0m";
// Modes that only matter to what is drawn over: the cursor, wrapping, paste, updates at once.
constexpr absl::string_view kHarmlessModes[] = {"?25", "?7", "?12", "?2004", "?2026"};

bool IsHarmlessMode(absl::string_view parameters) {
  return std::find(std::begin(kHarmlessModes), std::end(kHarmlessModes), parameters) !=
         std::end(kHarmlessModes);
}

bool IsParameter(char c) { return c >= '0' && c <= '?'; }

char32_t CodeOf(absl::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  char32_t code = character.size() == 1   ? lead
                  : character.size() == 2 ? lead & 0x1f
                  : character.size() == 3 ? lead & 0x0f
                                          : lead & 0x07;
  for (char c : character.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3f);
  return code;
}

// Where the parameters begin that count, those behind the last that resets all: npos if none does.
size_t BehindReset(const std::vector<absl::string_view>& parameters) {
  size_t behind = absl::string_view::npos;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const absl::string_view p = parameters[i];
    if (p == "38" || p == "48" || p == "58") {
      const bool indexed = i + 1 < parameters.size() && parameters[i + 1] == "5";
      i += indexed ? 2 : 4;
    } else if (p.empty() || p == "0" || p == "00") {
      behind = i + 1;
    }
  }
  return behind;
}

}  // namespace

namespace {

// Whether one of the sequences in `bytes` is such.
bool HasSequence(absl::string_view bytes,
                 absl::FunctionRef<bool(absl::string_view parameters, char command)> is_such) {
  for (size_t at = 0; (at = bytes.find("\033[", at)) != absl::string_view::npos;) {
    const size_t begin = at + 2;
    at = begin;
    while (at < bytes.size() && IsParameter(bytes[at])) ++at;
    if (at == bytes.size()) return false;
    if (is_such(bytes.substr(begin, at - begin), bytes[at])) return true;
  }
  return false;
}

}  // namespace

bool MovesUp(absl::string_view bytes) {
  return HasSequence(bytes, [](absl::string_view parameters, char command) {
    return (command == 'A' || command == 'F') &&
           parameters.find_first_not_of("0123456789") == absl::string_view::npos;
  });
}

bool NeedsScreen(absl::string_view bytes) {
  if (bytes.find('\b') != absl::string_view::npos) return true;
  return HasSequence(bytes, [](absl::string_view parameters, char command) {
    if (command == 'h' || command == 'l') return IsHarmlessMode(parameters);
    if (parameters.find_first_not_of("0123456789") != absl::string_view::npos) return false;
    if (command == 'K') return parameters == "1" || parameters == "2";
    return command >= 'A' && command <= 'G';
  });
}

void StandingText::Add(absl::string_view bytes, OnLine on_line) {
  std::string joined;
  if (!rest_.empty()) {
    joined = absl::StrCat(std::exchange(rest_, {}), bytes);
    bytes = joined;
  }
  while (!bytes.empty()) {
    const size_t taken = Take(bytes, on_line);
    if (taken == 0) {
      rest_.assign(bytes.data(), bytes.size());
      return;
    }
    bytes.remove_prefix(taken);
  }
}

// 0: more must come to know what it is.
size_t StandingText::Take(absl::string_view rest, OnLine on_line) {
  const auto c = static_cast<unsigned char>(rest[0]);
  if (c >= 0x20 && c < 0x7f) {
    Put(rest.substr(0, 1), 1, on_line);
    return 1;
  }
  switch (c) {
    case '\n':
      NewLine(on_line);
      return 1;
    case '\r':
      column_ = 0;
      overwritten_ = true;
      returned_ = controls_ == Controls::kKept;
      return 1;
    case '\b':
      if (column_ > 0) --column_;
      return 1;
    case '\t':
      Tab(on_line);
      return 1;
    case '\033':
      return TakeSequence(rest, on_line);
    default:
      break;
  }
  const size_t length = CharacterLength(rest);
  if (length == 0) {
    if (IsCutCharacter(rest)) return 0;
    PutByte(rest[0], on_line);
    return 1;
  }
  Put(rest.substr(0, length), CharacterWidth(CodeOf(rest.substr(0, length))), on_line);
  return length;
}

size_t StandingText::TakeSequence(absl::string_view rest, OnLine on_line) {
  if (rest.size() == 1) return 0;
  if (rest[1] == '[') {
    size_t end = 2;
    while (end < rest.size() && IsParameter(rest[end])) ++end;
    if (end == rest.size() && end < kLongestSequence) return 0;
    if (end < rest.size() && Obey(rest.substr(2, end - 2), rest[end])) return end + 1;
  }
  PutByte(rest[0], on_line);
  return 1;
}

bool StandingText::Obey(absl::string_view parameters, char command) {
  if (command == 'h' || command == 'l') {
    return IsHarmlessMode(parameters);
  }
  if (command == 'm') {
    if (controls_ == Controls::kAllShown ||
        parameters.find_first_not_of("0123456789;:") != absl::string_view::npos)
      return false;
    SetStyle(parameters);
    return true;
  }
  uint32_t number = 0;
  if (!parameters.empty() && !absl::SimpleAtoi(parameters, &number)) return false;
  const size_t steps = std::clamp<size_t>(number, 1, kMostColumns);
  switch (command) {
    case 'A':
      Up(steps);
      return true;
    case 'F':
      Up(steps);
      column_ = 0;
      return true;
    case 'B':
    case 'E':
      row_ = std::min(row_ + steps, rows_.size() - 1);
      if (command == 'E') column_ = 0;
      return true;
    case 'C':
      column_ = std::min(column_ + steps, kMostColumns - 2);
      return true;
    case 'D':
      column_ -= std::min(column_, steps);
      return true;
    case 'G':
      column_ = std::min(steps - 1, kMostColumns - 2);
      return true;
    case 'J':
      if (number != 0) return false;
      rows_.resize(row_ + 1);
      EraseInLine(0);
      return true;
    case 'K':
      if (number > 2) return false;
      EraseInLine(number);
      return true;
    default:
      return false;
  }
}

void StandingText::Up(size_t by) {
  by = std::min(by, kMostRows);
  overwritten_ = true;
  lines_since_ = 0;
  reach_ = std::max(reach_, by);
  // What stood there has gone out before anybody knew that it would be drawn over.
  while (by > row_ && rows_.size() < kMostRows) {
    rows_.emplace_front();
    ++row_;
  }
  row_ -= std::min(row_, by);
}

void StandingText::NewLine(OnLine on_line) {
  if (row_ + 1 == rows_.size()) rows_.emplace_back();
  ++row_;
  column_ = 0;
  returned_ = false;
  style_.clear();
  style_number_ = 0;
  if (reach_ > 0 && ++lines_since_ > kCalm) reach_ = 0;
  GiveOutUnreachable(on_line);
  if (reach_ == 0) overwritten_ = false;
}

void StandingText::GiveOutUnreachable(OnLine on_line) {
  while (row_ > reach_ || rows_.size() > kMostRows) {
    on_line(Row(0));
    rows_.pop_front();
    row_ -= std::min<size_t>(row_, 1);
  }
}

void StandingText::Put(absl::string_view character, size_t width, OnLine on_line) {
  Line& line = rows_[row_];
  std::vector<Cell>& cells = line.cells;
  if (std::exchange(returned_, false)) {
    if (!cells.empty()) overwritten_ = true;
    cells.clear();
    line.marks.clear();
  }
  if (width == 0) {
    size_t on = std::min(column_, cells.size());
    while (on > 0 && cells[on - 1].size == 0) --on;
    if (on == 0) return;
    std::string& marks = line.marks[on - 1];
    if (marks.size() + character.size() <= kMostMarks) absl::StrAppend(&marks, character);
    return;
  }
  if (column_ + width > kMostColumns) {
    NewLine(on_line);
    return Put(character, width, on_line);
  }
  const Cell blank = {{' '}, 1, 1, 0};
  if (cells.size() < column_) cells.resize(column_, blank);
  if (cells.size() > column_) {
    overwritten_ = true;
    // Half a wide character cannot be shown.
    if (cells[column_].size == 0) cells[column_ - 1] = blank;
    const size_t behind = column_ + width;
    if (behind < cells.size() && cells[behind].size == 0) cells[behind] = blank;
    if (!line.marks.empty()) {
      line.marks.erase(line.marks.lower_bound(column_), line.marks.lower_bound(behind));
    }
  }
  if (cells.size() < column_ + width) cells.resize(column_ + width, blank);
  Cell& cell = cells[column_];
  std::copy(character.begin(), character.end(), cell.bytes);
  cell.size = static_cast<uint8_t>(character.size());
  cell.width = static_cast<uint8_t>(width);
  cell.style = style_number_;
  if (width == 2) cells[column_ + 1] = {{}, 0, 0, style_number_};
  column_ += width;
}

void StandingText::PutByte(char byte, OnLine on_line) {
  if (controls_ == Controls::kKept) return Put(absl::string_view(&byte, 1), 1, on_line);
  std::string shown;
  AppendEscaped(byte, shown);
  for (char c : shown) Put(absl::string_view(&c, 1), 1, on_line);
}

void StandingText::Tab(OnLine on_line) {
  if (controls_ == Controls::kKept) return Put("\t", 1, on_line);
  const size_t at = indent_ + column_;
  const size_t stop = (at / kTabStop + 1) * kTabStop - indent_;
  // Over text it only moves.
  for (size_t to = column_; to < stop; ++to) {
    if (column_ < rows_[row_].cells.size()) {
      ++column_;
    } else {
      Put(" ", 1, on_line);
    }
  }
}

// 0: from the cursor on, 1: up to it, 2: all.
void StandingText::EraseInLine(size_t which) {
  Line& line = rows_[row_];
  std::vector<Cell>& cells = line.cells;
  returned_ = false;
  if (!cells.empty()) overwritten_ = true;
  if (which == 0 && column_ < cells.size()) {
    if (cells[column_].size == 0) cells[column_ - 1] = {{' '}, 1, 1, 0};
    cells.resize(column_);
    line.marks.erase(line.marks.lower_bound(column_), line.marks.end());
  } else if (which == 1) {
    const size_t until = std::min(column_ + 1, cells.size());
    if (until < cells.size() && cells[until].size == 0) cells[until] = {{' '}, 1, 1, 0};
    std::fill_n(cells.begin(), until, Cell{{' '}, 1, 1, 0});
    line.marks.erase(line.marks.begin(), line.marks.lower_bound(until));
  } else if (which == 2) {
    cells.clear();
    line.marks.clear();
  }
}

void StandingText::SetStyle(absl::string_view parameters) {
  const std::vector<absl::string_view> all = absl::StrSplit(parameters, ';');
  const size_t behind = BehindReset(all);
  if (behind != absl::string_view::npos) {
    style_.clear();
    const size_t begin = behind >= all.size()
                             ? parameters.size()
                             : static_cast<size_t>(all[behind].data() - parameters.data());
    parameters.remove_prefix(begin);
  }
  if (!parameters.empty()) {
    if (style_.size() + parameters.size() > kLongestStyle) style_.clear();
    absl::StrAppend(&style_, "\033[", parameters, "m");
  }
  style_number_ = StyleNumber(style_);
}

uint16_t StandingText::StyleNumber(const std::string& style) {
  auto at = std::find(styles_.begin(), styles_.end(), style);
  if (at == styles_.end()) {
    if (styles_.size() >= kMostStyles) ForgetUnusedStyles();
    if (styles_.size() >= kMostStyles) return 0;
    at = styles_.insert(styles_.end(), style);
  }
  return static_cast<uint16_t>(at - styles_.begin());
}

void StandingText::ForgetUnusedStyles() {
  std::vector<std::string> kept = {""};
  std::map<uint16_t, uint16_t> now = {{0, 0}};
  for (Line& line : rows_) {
    for (Cell& cell : line.cells) {
      auto [at, is_new] = now.try_emplace(cell.style, static_cast<uint16_t>(kept.size()));
      if (is_new) kept.push_back(styles_[cell.style]);
      cell.style = at->second;
    }
  }
  styles_ = std::move(kept);
}

std::string StandingText::Text(const Line& line, size_t from, size_t to) const {
  std::string out;
  uint16_t style = 0;
  for (size_t i = from; i < to; ++i) {
    const Cell& cell = line.cells[i];
    if (cell.size == 0) continue;
    if (cell.style != style) {
      if (style != 0) absl::StrAppend(&out, kNoStyle);
      style = cell.style;
      absl::StrAppend(&out, styles_[style]);
    }
    out.append(cell.bytes, cell.size);
    if (line.marks.empty()) continue;
    if (auto marks = line.marks.find(i); marks != line.marks.end()) out += marks->second;
  }
  if (style != 0) absl::StrAppend(&out, kNoStyle);
  return out;
}

std::string StandingText::Row(size_t row, size_t columns) const {
  const Line& line = rows_[row];
  size_t to = std::min(columns, line.cells.size());
  if (to < line.cells.size() && line.cells[to].size == 0) --to;  // half of a wide one
  return Text(line, 0, to);
}

std::string StandingText::EndOfRow(size_t row, size_t columns) const {
  const Line& line = rows_[row];
  const size_t size = line.cells.size();
  size_t from = size - std::min(columns, size);
  if (from < size && line.cells[from].size == 0) ++from;
  return Text(line, from, size);
}

bool StandingText::IsBlank(size_t row) const {
  const std::vector<Cell>& cells = rows_[row].cells;
  return std::all_of(cells.begin(), cells.end(),
                     [](const Cell& cell) { return cell.size == 1 && cell.bytes[0] == ' '; });
}

bool StandingText::empty() const {
  return rows_.size() == 1 && rows_[0].cells.empty() && reach_ == 0 && rest_.empty();
}

void StandingText::Flush(OnLine on_line) {
  for (char c : std::exchange(rest_, {})) PutByte(c, on_line);
  while (rows_.size() > 1 && IsBlank(rows_.size() - 1)) rows_.pop_back();
  const bool any = rows_.size() > 1 || !rows_[0].cells.empty();
  for (size_t i = 0; any && i < rows_.size(); ++i) on_line(Row(i));
  *this = StandingText(controls_, indent_);
}

std::string UnfinishedLine(absl::string_view output) {
  if (output.empty() || output.back() == '\n') return "";
  StandingText text(StandingText::Controls::kShown);
  text.Add(output, [](absl::string_view) {});
  for (size_t row = text.rows(); row-- > 0;) {
    if (text.IsBlank(row)) continue;
    return std::string(absl::StripTrailingAsciiWhitespace(WithoutColours(text.Row(row))));
  }
  return "";
}

}  // namespace dtrain::output
