// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/detached/job_folder.h"
#include "launcher/detached/log_reader.h"
#include "launcher/detached/log_segments.h"
#include "launcher/output/layout.h"

namespace dtrain::story {

// Attempts that have left a folder for output, ascending.
std::vector<uint32_t> AttemptsOf(const detached::JobFolder& job);

// Whether LayoutOf would know: not before the workers of a running attempt were started.
bool HasLayout(const detached::JobFolder& job, uint32_t attempt);
// Where the ranks of an attempt are, as far as journal, summary and the files of its output tell:
// it has at least the ranks that have files.
output::Layout LayoutOf(const detached::JobFolder& job, uint32_t attempt);

// The offset at which the last `lines` lines of a stream begin, or about the last `most_bytes` of
// it. A last line without an end is one, too.
uint64_t BeginOfLast(const std::string& folder, const detached::LogStream& stream,
                     const std::vector<detached::LogSegment>& segments, uint64_t lines,
                     uint64_t most_bytes);

// Reads the output of one attempt, also while it is written. Calls may block.
class OutputReader {
 public:
  // Of `only` one stream, or of all.
  explicit OutputReader(std::string folder, std::optional<detached::LogStream> only = std::nullopt)
      : folder_(std::move(folder)), only_(only) {}

  // Leaves out all but the last `lines` of each stream, and all but about `most_bytes` of it.
  // Before the first Read.
  absl::Status SkipToLast(uint64_t lines, uint64_t most_bytes);

  // Gives out what has come of each stream in turn, in pieces of at most `limit` bytes and only
  // some of them, until `take` says false. Whether there was anything.
  using Take = absl::FunctionRef<bool(const detached::LogStream&, std::string)>;
  absl::StatusOr<bool> Read(size_t limit, Take take);

 private:
  std::string folder_;
  std::optional<detached::LogStream> only_;
  std::map<detached::LogStream, detached::LogReader> readers_;
  std::optional<detached::LogStream> next_;  // whose turn it is
};

}  // namespace dtrain::story
