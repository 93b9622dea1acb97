// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/detached/log_segments.h"

namespace dtrain::detached {

// Reads one stream from its segments, from `offset` on, also while they are written. Calls may
// block.
class LogReader {
 public:
  LogReader(std::string folder, LogStream stream, uint64_t offset = 0)
      : folder_(std::move(folder)), stream_(stream), offset_(offset) {}

  // What follows: at most `limit` bytes, or, where some were removed, how many. Empty: no more is
  // there now.
  absl::StatusOr<std::string> Next(size_t limit);
  uint64_t offset() const { return offset_; }

 private:
  std::string Read(size_t limit);

  std::string folder_;
  LogStream stream_;
  uint64_t offset_;
  std::vector<LogSegment> segments_;  // when last looked at
  uint32_t polls_ = 0;                // since it found nothing for the first time
};

}  // namespace dtrain::detached
