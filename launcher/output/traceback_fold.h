// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/ids.h"

namespace dtrain::output {

// Prints a Python traceback that several ranks write to stderr once, if their texts differ in no
// more than addresses, pids and numbers of ranks. A traceback is held back until it is whole, a
// fraction of a second; the first rank's is shown, of the others it is told that they wrote the
// same. Whatever a rank writes besides, or twice, is shown. Pure.
class TracebackFold {
 public:
  struct Line {
    Rank rank;
    std::string text;  // without its newline
  };
  using Lines = std::vector<Line>;

  // Whether Add would do anything but give the line back, which is what nearly all lines get.
  bool Wants(Rank rank, absl::string_view line) const;
  // One line of a rank's stderr. Returns what is to be shown now, in order.
  Lines Add(Rank rank, absl::string_view line, TimePoint now);
  // That rank's stderr has ended.
  Lines End(Rank rank, TimePoint now);
  // Call it at deadline(), which may be too early. kNever: nothing is held back.
  Lines Expire(TimePoint now);
  TimePoint deadline() const;

  // "ranks 1-7 wrote the same traceback as rank 0", for each that was folded since the last call.
  std::vector<std::string> TakeSummaries();
  bool has_summaries() const;

 private:
  struct Block {
    std::vector<std::string> lines;
    size_t bytes = 0;
    size_t head = 0;     // lines of the traceback alone, without what the rank wrote after it
    bool inside = true;  // its last line, the exception, has not come
    TimePoint began, last;
    TimePoint until() const;
  };
  struct Shown {
    Rank first{0};
    std::string text;           // as the first rank wrote it
    std::string rest;           // Likeness of what it wrote right after it
    bool differ = false;        // the others' is not quite the same
    std::set<uint32_t> ranks;   // that wrote it
    std::set<uint32_t> untold;  // those of them that were folded since the last summary
    TimePoint since;
  };

  void Close(std::map<uint32_t, Block>::iterator block, TimePoint now, Lines& out);

  std::map<uint32_t, Block> open_;     // by rank
  std::map<std::string, Shown> seen_;  // by the traceback's Likeness
  size_t held_ = 0;                    // bytes in open_
  TimePoint next_ = kNever;            // no block of open_ is due before it
  TimePoint folded_ = kNever;          // when the last one was, if that is untold
};

// "rank 3", "ranks 0-2 and 5".
std::string RankRanges(const std::set<uint32_t>& ranks);

}  // namespace dtrain::output
