// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "launcher/detached/log_segments.h"

// When the output of an attempt came to its launcher, and in which order that of a rank's two
// streams: for people who read it later. In the file `logs/0.times` beside the folder `logs/0`.
// Nothing depends on it, so it is not synced, and what cannot be written is left out.
namespace dtrain::detached {

std::string TimesFile(const std::string& log_folder);
uint64_t TimesBytes(const std::string& log_folder);
void AddTimes(const std::string& log_folder, absl::string_view records);

// Which times are worth a record. The file has 8 MiB at most, as records are made less often the
// more there are: at first for each change of the stream and ten times a second.
class TimesWriter {
 public:
  explicit TimesWriter(uint64_t bytes_before = 0) : bytes_(bytes_before) {}
  // Bytes of the stream from `offset` on have come. The record of it, or nothing.
  std::string Note(const LogStream& stream, uint64_t offset, int64_t unix_nanos);

 private:
  uint64_t bytes_;
  std::map<LogStream, int64_t> noted_;     // when last
  std::map<uint32_t, LogStream> last_of_;  // of a rank, the stream that came last
};

class LogTimes {
 public:
  // Bytes of one stream that came together. Without a time: not known.
  struct Run {
    LogStream stream;
    uint64_t begin = 0;
    uint64_t end = 0;  // of the last of its stream the greatest number
    int64_t unix_nanos = 0;
  };

  static LogTimes Parse(absl::string_view records);
  static LogTimes Read(const std::string& log_folder);

  bool empty() const { return marks_.empty(); }
  // All bytes of both streams of a rank, in the order in which they came.
  std::vector<Run> RunsOf(Rank rank) const;
  // The run that has this byte.
  Run At(const LogStream& stream, uint64_t offset) const;
  // The first byte that came then or later; behind all of them, if none did.
  uint64_t FirstSince(const LogStream& stream, int64_t unix_nanos) const;

 private:
  struct Mark {
    uint64_t offset = 0;
    int64_t unix_nanos = 0;
    uint64_t place = 0;  // in the file
  };
  Run RunAt(const LogStream& stream, const std::vector<Mark>& marks, size_t i) const;
  std::map<LogStream, std::vector<Mark>> marks_;  // by offset
};

}  // namespace dtrain::detached
