// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "launcher/detached/log_segments.h"
#include "launcher/output/display.h"
#include "launcher/output/line_splitter.h"
#include "launcher/status/command_options.h"

namespace dtrain::status {

// What `dtrain logs` prints. Of one rank its bytes as they were written, on stdout and stderr as it
// wrote them, or one stream of it on stdout. Of several ranks lines on stdout, each with its rank,
// "[3] ", and its stream if that is stderr, "[3 stderr] ". With --json each line as an object of
// `rank`, `stream` and `line`, in which bytes that are no UTF-8 are U+FFFD. The last line may have
// no end.
class LogPrinter {
 public:
  // `of_another`: it is somebody else's job, whose output can do nothing to our terminal unless
  // that is asked for (--raw).
  explicit LogPrinter(const CommandOptions& options, bool of_another = false);
  ~LogPrinter();
  LogPrinter(const LogPrinter&) = delete;
  LogPrinter& operator=(const LogPrinter&) = delete;

  // That the job has, once that is known. Until then several.
  void SetRanks(size_t ranks) { ranks_ = ranks; }
  // Before the first Add: progress bars and prompts, whose lines have no end yet, are shown as
  // `dtrain launch` shows them; with --json at most once a second, with `unfinished`. Call Look
  // several times a second from then on.
  void ShowUnfinished();
  // `unix_nanos`: when it came; 0: not known. False: stdout takes no more.
  bool Add(const detached::LogStream& stream, absl::string_view piece, int64_t unix_nanos = 0);
  // What has become due since. False: stdout takes no more.
  bool Look(TimePoint now);
  // Before dtrain's own words on stderr, while ranks write: ends what stands where they would go.
  void MakeRoom();
  // Lines without an end, too: of one rank, or all.
  void Flush(std::optional<Rank> rank = std::nullopt);
  // Flushes all. DATA_LOSS: stderr has not taken all of its part.
  absl::Status Finish();

 private:
  struct Open {
    output::LineSplitter lines;
    int64_t unix_nanos = 0;  // when the line began that has not ended
    bool begun = false;      // the beginning of that line was printed, or `display_` has it
    TimePoint added;         // when more of it came last
    TimePoint since;         // when the line began that has not ended
    TimePoint told;          // with `unfinished`
    std::string rest;        // of a character, not complete
  };

  bool has_tags() const { return !options_.rank && ranks_ != 1; }
  bool makes_lines() const { return options_.json || options_.timestamps || has_tags(); }
  std::string TimeOf(int64_t unix_nanos) const;
  void AddToDisplay(const detached::LogStream& stream, Open& open, absl::string_view piece,
                    int64_t unix_nanos);
  void Draw(TimePoint now);
  void PrintUnfinished(TimePoint now);
  void PrintObject(const detached::LogStream& stream, absl::string_view line, int64_t unix_nanos,
                   bool unfinished);
  void PrintBytes(const detached::LogStream& stream, absl::string_view bytes);
  // `begun`: its beginning was printed before.
  void PrintLine(const detached::LogStream& stream, absl::string_view line, bool ended,
                 int64_t unix_nanos, bool begun);

  const CommandOptions& options_;
  const bool is_terminal_;
  const bool shows_escapes_;
  bool looks_ = false;  // ShowUnfinished with --json
  size_t ranks_ = 0;
  std::map<detached::LogStream, Open> open_;
  std::optional<output::Display> display_;  // see ShowUnfinished; used where lines have tags
  int64_t last_nanos_ = 0;                  // when the newest output came that it has
  int stderr_error_ = 0;                    // errno of the first write that stderr did not take
};

// Whether a job's folder or socket is another user's.
bool IsOfAnother(const std::string& path);

}  // namespace dtrain::status
