// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/log_reader.h"

#include <fstream>

#include "absl/strings/str_cat.h"

namespace dtrain::detached {
namespace {

// The folder has the files of all streams: who waits for more looks through it each so many times.
constexpr uint32_t kPollsPerLook = 16;

// Up to `limit` bytes; empty also where there is no such file.
std::string ReadAt(const std::string& path, uint64_t offset, size_t limit) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return "";
  file.seekg(static_cast<std::streamoff>(offset));
  std::string bytes(limit, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(limit));
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

}  // namespace

std::string LogReader::Read(size_t limit) {
  // The last one that begins before the offset, which may have grown, and the one behind it.
  uint64_t begin = offset_;
  for (const LogSegment& segment : segments_) {
    if (segment.begin < offset_) begin = segment.begin;
  }
  for (const uint64_t at : {begin, offset_}) {
    std::string bytes =
        ReadAt(absl::StrCat(folder_, "/", SegmentName(stream_, at)), offset_ - at, limit);
    if (bytes.empty()) continue;
    if (segments_.empty() || segments_.back().begin < at) segments_.push_back({at, 0});
    offset_ += bytes.size();
    polls_ = 0;
    return bytes;
  }
  return "";
}

absl::StatusOr<std::string> LogReader::Next(size_t limit) {
  std::string bytes = Read(limit);
  if (!bytes.empty() || polls_++ % kPollsPerLook != 0) return bytes;
  auto streams = ListSegments(folder_, stream_);
  if (!streams.ok()) return streams.status();
  segments_ = std::move((*streams)[stream_]);
  bytes = Read(limit);
  if (!bytes.empty()) return bytes;
  for (const LogSegment& segment : segments_) {
    if (segment.begin <= offset_) continue;  // an empty one says how far the stream was
    const uint64_t missing = segment.begin - offset_;
    offset_ = segment.begin;
    polls_ = 0;
    return absl::StrCat("[dtrain: ", missing, " bytes are no longer available]\n");
  }
  return "";
}

}  // namespace dtrain::detached
