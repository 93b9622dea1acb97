// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/clock.h"

namespace dtrain::spawn {

// What of a job's own words gets into the agent's log, which is not its user's to fill or to forge:
// lines of 512 bytes, escaped, 20 a second and 1 MiB in all. The rest is counted. Pure.
class WordLimits {
 public:
  static constexpr size_t kMostOfLine = 512;
  static constexpr int kMostLines = 20;  // a second
  static constexpr size_t kMostBytes = 1 << 20;

  // Returns the lines for the log.
  std::vector<std::string> Take(TimePoint now, absl::string_view bytes);
  // Nothing more comes.
  std::vector<std::string> End(TimePoint now);

 private:
  void Line(TimePoint now, std::vector<std::string>* out);
  void TellOmitted(std::vector<std::string>* out);

  std::string begun_;  // a line without its end, as far as it counts
  bool is_begun_ = false;
  TimePoint since_{};
  int lines_ = 0;         // since then
  size_t bytes_ = 0;      // in all
  uint64_t omitted_ = 0;  // lines, not told of yet
};

}  // namespace dtrain::spawn
