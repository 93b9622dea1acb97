// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/os/append_file.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::detached {

// One of the two outputs of a worker.
struct LogStream {
  Rank rank;
  bool is_stderr = false;
  auto operator<=>(const LogStream&) const = default;
};
using LogOffsets = std::map<LogStream, uint64_t>;

// Part of a stream, in a file whose name has the offset of its first byte: rank-00003.out.67108864.
struct LogSegment {
  uint64_t begin = 0;
  uint64_t size = 0;
  int64_t written_nanos = 0;  // when last
  uint64_t end() const { return begin + size; }
};
std::string SegmentName(const LogStream& stream, uint64_t begin);
// Those in a folder, of all streams or of `only` one, by offset. A missing folder has none.
absl::StatusOr<std::map<LogStream, std::vector<LogSegment>>> ListSegments(
    const std::string& folder, std::optional<LogStream> only = std::nullopt);

// Segments have 64 MiB; less where the first and the last one of each rank's streams would take
// more than half of `limit` (0: none). They have 4 KiB at least: from `limit` / 16 KiB ranks on,
// these alone exceed it.
uint64_t SegmentBytes(uint64_t limit, uint32_t world_size);

// Output of a job's attempts that have ended, as far as it may be removed. Nobody writes there.
class EarlierLogs {
 public:
  absl::Status Open(const std::vector<std::string>& folders);  // the oldest first
  uint64_t bytes() const { return bytes_; }
  // False: nothing is left that could be removed.
  absl::StatusOr<bool> RemoveMiddle();  // neither the first nor the last of its stream
  absl::StatusOr<bool> RemoveAny();

 private:
  struct File {
    std::string path;
    uint64_t size = 0;
    std::string end;  // of the last of a stream: the path of an empty segment behind it
  };
  absl::StatusOr<bool> RemoveFrom(std::deque<File>& files);

  std::deque<File> middle_;  // the next to go is in front
  std::deque<File> outer_;
  uint64_t bytes_ = 0;
};

// Where the output of an attempt is, and how much of the job's is kept.
struct LogPlace {
  std::string folder;
  std::vector<std::string> earlier = {};  // those of the job's attempts before, the oldest first
  uint64_t limit = 0;                     // bytes in all these folders; 0: any number
};

// The output of one attempt of a job. One thread at a time; calls may block.
//
// When the job has more output than its limit, old segments are removed, and readers see how many
// bytes are missing. Those between the first and the last of a stream go first: of earlier
// attempts, then of this one. If that is not enough, all output of earlier attempts goes, the
// oldest first; then empty segments say how much there was. The first and the last segment of a
// stream of this attempt stay in any case. Sizes come from the folders, so whoever takes the job
// over counts the same, and a crash between any two steps leaves what can be read.
class LogSegments {
 public:
  LogSegments(LogPlace place, uint64_t segment_bytes);

  // Of segments that are begun from now on.
  void SetSegmentBytes(uint64_t bytes) { segment_bytes_ = bytes; }
  // Makes the folder if it is missing. Of what is there, bytes up to the offset of their stream
  // stay (none that is not named): what is behind was never known to be on disk, and comes again.
  absl::Status Open(const LogOffsets& synced);
  // At the end of the stream; `offset` is behind that where bytes are missing. After a failure the
  // stream must be cut before it is written again.
  absl::Status Write(const LogStream& stream, uint64_t offset, absl::string_view bytes);
  // All that was written. After a failure it must be cut and written again.
  absl::Status Sync();
  absl::Status CutTo(const LogStream& stream, uint64_t offset);

 private:
  using FileId = std::pair<LogStream, uint64_t>;  // and the segment's beginning

  std::string PathOf(const FileId& id) const;
  absl::StatusOr<os::AppendFile*> FileOf(const FileId& id, bool make);
  absl::Status Remove(const FileId& id);
  absl::Status Begin(const LogStream& stream, uint64_t offset);
  absl::Status MakeRoom(uint64_t bytes);
  absl::StatusOr<bool> RemoveOldest();

  const LogPlace place_;
  uint64_t segment_bytes_;
  EarlierLogs earlier_;
  std::map<LogStream, std::vector<LogSegment>> streams_;
  uint64_t bytes_ = 0;  // of this attempt
  // Those that were complete once, the oldest first. Some are gone, the first or the last of their
  // stream now.
  std::deque<FileId> complete_;
  std::map<FileId, os::AppendFile> open_;
  std::set<FileId> unsynced_;
  bool folder_unsynced_ = false;
};

}  // namespace dtrain::detached
