// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace dtrain::output {

// The unfinished line of one stream, as a terminal of its own would show it: what carriage returns,
// backspaces, erasing and steps of the cursor make of it, with its colours. Programs that draw
// several lines (nested progress bars) move the cursor up: then it is that many lines, which go out
// once none of them can be reached any more. Pure.
class StandingText {
 public:
  // Columns of a line that has no end, and lines that a program may reach from below.
  static constexpr size_t kMostColumns = 64 << 10;
  static constexpr size_t kMostRows = 64;

  // What can do more to a terminal than fill a line: shown as text, as AppendForTerminal does; so
  // that colours are, too; or kept as it is, for pipes.
  enum class Controls { kShown, kAllShown, kKept };
  // `indent`: columns in front of each line, for tabs.
  explicit StandingText(Controls controls, size_t indent = 0)
      : controls_(controls), indent_(indent) {}

  // A line that is finished, without its newline.
  using OnLine = absl::FunctionRef<void(absl::string_view line)>;
  void Add(absl::string_view bytes, OnLine on_line);
  // The stream is over: what stands is finished.
  void Flush(OnLine on_line);

  // Nothing stands, and nothing is remembered.
  bool empty() const;
  // Something of the line was drawn over, as progress bars do; a prompt is not.
  bool overwritten() const { return overwritten_; }
  // At least one.
  size_t rows() const { return rows_.size(); }
  bool IsBlank(size_t row) const;
  // The row's text and colours, the first or last `columns` of it.
  std::string Row(size_t row, size_t columns = kMostColumns) const;
  std::string EndOfRow(size_t row, size_t columns) const;
  size_t Width(size_t row) const { return rows_[row].cells.size(); }

 private:
  struct Cell {
    char bytes[4];
    uint8_t size;  // 0: the second column of a wide character
    uint8_t width;
    uint16_t style;  // of styles_; 0: none
  };
  struct Line {
    std::vector<Cell> cells;  // by column
    // Combining characters, by the column of what they are drawn on.
    std::map<size_t, std::string> marks;
  };

  size_t Take(absl::string_view rest, OnLine on_line);
  size_t TakeSequence(absl::string_view rest, OnLine on_line);
  // False: it is not one of those that have a meaning here.
  bool Obey(absl::string_view parameters, char command);
  void NewLine(OnLine on_line);
  void GiveOutUnreachable(OnLine on_line);
  void Up(size_t by);
  void Put(absl::string_view character, size_t width, OnLine on_line);
  void PutByte(char byte, OnLine on_line);
  void EraseInLine(size_t which);
  void Tab(OnLine on_line);
  void SetStyle(absl::string_view parameters);
  uint16_t StyleNumber(const std::string& style);
  void ForgetUnusedStyles();
  std::string Text(const Line& line, size_t from, size_t to) const;

  Controls controls_;
  size_t indent_;
  std::deque<Line> rows_ = std::deque<Line>(1);
  size_t row_ = 0;
  size_t column_ = 0;
  bool overwritten_ = false;
  bool returned_ = false;   // kKept: the next character begins the line again
  size_t reach_ = 0;        // rows that the cursor has gone up at once; 0: none
  size_t lines_since_ = 0;  // that were finished since it last went up
  std::string style_;       // the sequences that are in force
  uint16_t style_number_ = 0;
  std::vector<std::string> styles_ = {""};
  std::string rest_;  // of a character or sequence that is not complete
};

// What stands of a stream that ends with `output`: a prompt, or a progress bar as it is now,
// without colours and blanks behind it; of several lines the last. Empty: nothing. Pure.
std::string UnfinishedLine(absl::string_view output);

// Whether `bytes` move the cursor up.
bool MovesUp(absl::string_view bytes);
// Whether they do anything besides that a line alone, as AppendForTerminal shows it, has not: steps
// of the cursor, erasing more than the rest of the line, hiding the cursor.
bool NeedsScreen(absl::string_view bytes);

}  // namespace dtrain::output
