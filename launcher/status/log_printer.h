// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "launcher/output/line_splitter.h"
#include "launcher/status/command_options.h"

namespace dtrain::status {

// What `dtrain logs` puts on stdout: the bytes as they were written or, with --json, each line as
// an object of `rank`, `stream` and `line`, in which bytes that are no UTF-8 are U+FFFD. The last
// line may have no end.
class LogPrinter {
 public:
  // `of_another`: it is somebody else's job, whose output can do nothing to our terminal unless
  // that is asked for (--raw).
  explicit LogPrinter(const CommandOptions& options, bool of_another = false);
  ~LogPrinter();
  LogPrinter(const LogPrinter&) = delete;
  LogPrinter& operator=(const LogPrinter&) = delete;
  // False: stdout takes no more.
  bool Add(absl::string_view piece);

 private:
  void PrintLine(absl::string_view line) const;
  const CommandOptions& options_;
  const bool shows_escapes_;
  output::LineSplitter lines_;  // --json
  std::string rest_;            // of a character, not complete
};

// Whether a job's folder or socket is another user's.
bool IsOfAnother(const std::string& path);

}  // namespace dtrain::status
