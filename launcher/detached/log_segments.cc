// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/log_segments.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/os/private_file.h"

namespace dtrain::detached {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostSegment = 64 << 20;
constexpr uint64_t kLeastSegment = 4 << 10;  // a file takes no less of a disk
// A job may have more streams than we may have descriptors.
constexpr size_t kMostOpen = 64;

absl::Status PathError(absl::string_view what, absl::string_view path,
                       const std::error_code& error) {
  return absl::UnavailableError(absl::StrCat(what, " ", path, ": ", error.message()));
}

std::optional<std::pair<LogStream, uint64_t>> ParseName(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "rank-")) return std::nullopt;
  const size_t first = name.find('.');
  const size_t second = first == name.npos ? name.npos : name.find('.', first + 1);
  if (second == name.npos) return std::nullopt;
  const absl::string_view kind = name.substr(first + 1, second - first - 1);
  uint32_t rank = 0;
  uint64_t begin = 0;
  if ((kind != "out" && kind != "err") || !absl::SimpleAtoi(name.substr(0, first), &rank) ||
      !absl::SimpleAtoi(name.substr(second + 1), &begin)) {
    return std::nullopt;
  }
  return std::make_pair(LogStream{Rank(rank), kind == "err"}, begin);
}

}  // namespace

std::string SegmentName(const LogStream& stream, uint64_t begin) {
  return absl::StrFormat("rank-%05d.%s.%d", stream.rank.value(), stream.is_stderr ? "err" : "out",
                         begin);
}

absl::StatusOr<std::map<LogStream, std::vector<LogSegment>>> ListSegments(
    const std::string& folder, std::optional<LogStream> only) {
  std::map<LogStream, std::vector<LogSegment>> streams;
  // Readers look often, at thousands of files: std::filesystem takes ten times as long.
  const std::unique_ptr<DIR, int (*)(DIR*)> files(opendir(folder.c_str()), closedir);
  if (files == nullptr && errno != ENOENT) {
    return PathError("list", folder, std::error_code(errno, std::generic_category()));
  }
  while (files != nullptr) {
    errno = 0;
    const dirent* entry = readdir(files.get());
    if (entry == nullptr && errno != 0) {
      return PathError("list", folder, std::error_code(errno, std::generic_category()));
    }
    if (entry == nullptr) break;
    const auto name = ParseName(entry->d_name);
    if (!name || (only && name->first != *only)) continue;
    struct stat status;
    const int looked = fstatat(dirfd(files.get()), entry->d_name, &status, 0);
    if (looked != 0 || !S_ISREG(status.st_mode)) continue;  // gone
    streams[name->first].push_back(
        {name->second, static_cast<uint64_t>(status.st_size),
         status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec});
  }
  for (auto& [stream, segments] : streams) {
    std::sort(segments.begin(), segments.end(),
              [](const LogSegment& a, const LogSegment& b) { return a.begin < b.begin; });
  }
  return streams;
}

uint64_t SegmentBytes(uint64_t limit, uint32_t world_size) {
  if (limit == 0) return kMostSegment;
  // Two for each stream stay in any case: they may have half of the room.
  const uint64_t streams = 2 * std::max<uint64_t>(world_size, 1);
  return std::clamp(limit / (4 * streams), kLeastSegment, kMostSegment);
}

absl::Status EarlierLogs::Open(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    const auto streams = ListSegments(folder);
    if (!streams.ok()) return streams.status();
    std::vector<std::pair<int64_t, File>> middle;
    std::vector<std::pair<int64_t, File>> outer;
    for (const auto& [stream, segments] : *streams) {
      for (size_t i = 0; i < segments.size(); ++i) {
        const LogSegment& segment = segments[i];
        if (segment.size == 0) continue;
        File file{absl::StrCat(folder, "/", SegmentName(stream, segment.begin)), segment.size, ""};
        const bool is_last = i + 1 == segments.size();
        if (is_last) file.end = absl::StrCat(folder, "/", SegmentName(stream, segment.end()));
        bytes_ += segment.size;
        (i == 0 || is_last ? outer : middle).emplace_back(segment.written_nanos, std::move(file));
      }
    }
    const auto older = [](const auto& a, const auto& b) { return a.first < b.first; };
    for (const auto& [from, to] : {std::pair(&middle, &middle_), std::pair(&outer, &outer_)}) {
      std::stable_sort(from->begin(), from->end(), older);
      for (auto& [when, file] : *from) to->push_back(std::move(file));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> EarlierLogs::RemoveFrom(std::deque<File>& files) {
  if (files.empty()) return false;
  const File& file = files.front();
  // Where the disk is full there may be no room for it: then nobody learns how much is missing.
  if (!file.end.empty()) os::AppendFile::Create(file.end).status().IgnoreError();
  std::error_code error;
  fs::remove(file.path, error);
  if (error) return PathError("remove", file.path, error);
  bytes_ -= file.size;
  files.pop_front();
  return true;
}

absl::StatusOr<bool> EarlierLogs::RemoveMiddle() { return RemoveFrom(middle_); }

absl::StatusOr<bool> EarlierLogs::RemoveAny() {
  return RemoveFrom(middle_.empty() ? outer_ : middle_);
}

LogSegments::LogSegments(LogPlace place, uint64_t segment_bytes)
    : place_(std::move(place)), segment_bytes_(segment_bytes) {}

std::string LogSegments::PathOf(const FileId& id) const {
  return absl::StrCat(place_.folder, "/", SegmentName(id.first, id.second));
}

absl::StatusOr<os::AppendFile*> LogSegments::FileOf(const FileId& id, bool make) {
  const auto known = open_.find(id);
  if (known != open_.end()) return &known->second;
  auto file = make ? os::AppendFile::Create(PathOf(id)) : os::AppendFile::Open(PathOf(id));
  if (!file.ok()) return file.status();
  if (open_.size() >= kMostOpen) open_.clear();
  return &open_.emplace(id, *std::move(file)).first->second;
}

absl::Status LogSegments::Open(const LogOffsets& synced) {
  const std::string& folder = place_.folder;
  if (absl::Status made = os::MakeOwnDirectory(folder, 0700, 0700); !made.ok()) return made;
  folder_unsynced_ = true;
  if (place_.limit != 0) {
    if (absl::Status opened = earlier_.Open(place_.earlier); !opened.ok()) return opened;
  }
  auto found = ListSegments(folder);
  if (!found.ok()) return found.status();
  streams_ = *std::move(found);
  for (const auto& [stream, offset] : synced) streams_.try_emplace(stream);
  std::vector<std::pair<int64_t, FileId>> complete;
  for (auto& [stream, segments] : streams_) {
    for (const LogSegment& segment : segments) bytes_ += segment.size;
    const auto at = synced.find(stream);
    const uint64_t end = at == synced.end() ? 0 : at->second;
    if (absl::Status cut = CutTo(stream, end); !cut.ok()) return cut;
    // What is cut may have been the only part behind some that was removed to make room for it.
    if (end > (segments.empty() ? 0 : segments.back().end())) {
      if (auto made = FileOf({stream, end}, /*make=*/true); !made.ok()) return made.status();
      segments.push_back({end, 0});
    }
    for (size_t i = 0; i + 1 < segments.size(); ++i) {
      complete.emplace_back(segments[i].written_nanos, FileId(stream, segments[i].begin));
    }
  }
  std::sort(complete.begin(), complete.end());
  for (auto& [when, id] : complete) complete_.push_back(id);
  return os::SyncFolder(fs::path(folder).parent_path().string());
}

absl::Status LogSegments::Remove(const FileId& id) {
  std::error_code error;
  fs::remove(PathOf(id), error);
  if (error) return PathError("remove", PathOf(id), error);
  open_.erase(id);
  unsynced_.erase(id);
  std::vector<LogSegment>& segments = streams_[id.first];
  const auto at = std::find_if(segments.begin(), segments.end(), [&](const LogSegment& segment) {
    return segment.begin == id.second;
  });
  bytes_ -= at->size;
  segments.erase(at);
  return absl::OkStatus();
}

absl::Status LogSegments::CutTo(const LogStream& stream, uint64_t offset) {
  std::vector<LogSegment>& segments = streams_[stream];
  while (!segments.empty() && segments.back().begin > 0 && segments.back().begin >= offset) {
    absl::Status removed = Remove({stream, segments.back().begin});
    if (!removed.ok()) return removed;
  }
  if (segments.empty()) return absl::OkStatus();
  LogSegment& last = segments.back();
  const FileId id(stream, last.begin);
  open_.erase(id);  // perhaps of a file that somebody has removed
  const auto file = FileOf(id, /*make=*/false);
  if (absl::IsNotFound(file.status())) return Remove(id);
  if (!file.ok()) return file.status();
  const uint64_t size = std::min((*file)->size(), offset - last.begin);
  if (size < (*file)->size()) {
    if (absl::Status cut = (*file)->CutTo(size); !cut.ok()) return cut;
    unsynced_.insert(id);
  }
  bytes_ = bytes_ - last.size + size;
  last.size = size;
  return absl::OkStatus();
}

absl::Status LogSegments::Begin(const LogStream& stream, uint64_t offset) {
  std::vector<LogSegment>& segments = streams_[stream];
  if (auto made = FileOf({stream, offset}, /*make=*/true); !made.ok()) return made.status();
  folder_unsynced_ = true;
  if (!segments.empty()) complete_.emplace_back(stream, segments.back().begin);
  segments.push_back({offset, 0});
  return absl::OkStatus();
}

// For so many bytes that are about to be written.
absl::Status LogSegments::MakeRoom(uint64_t bytes) {
  if (place_.limit == 0) return absl::OkStatus();
  while (bytes_ + earlier_.bytes() + bytes > place_.limit) {
    auto removed = earlier_.RemoveMiddle();
    if (removed.ok() && !*removed) removed = RemoveOldest();
    if (removed.ok() && !*removed) removed = earlier_.RemoveAny();
    if (!removed.ok()) return removed.status();
    if (!*removed) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> LogSegments::RemoveOldest() {
  while (!complete_.empty()) {
    const FileId id = complete_.front();
    const std::vector<LogSegment>& segments = streams_[id.first];
    const bool there = std::any_of(segments.begin(), segments.end(),
                                   [&](const LogSegment& at) { return at.begin == id.second; });
    // One that has become the last again, as what came behind it was cut, is added when it is
    // complete.
    const bool stays =
        !there || segments.front().begin == id.second || segments.back().begin == id.second;
    if (!stays) {
      if (absl::Status removed = Remove(id); !removed.ok()) return removed;
    }
    complete_.pop_front();
    if (!stays) return true;
  }
  return false;
}

absl::Status LogSegments::Write(const LogStream& stream, uint64_t offset, absl::string_view bytes) {
  while (!bytes.empty()) {
    std::vector<LogSegment>& segments = streams_[stream];
    if (segments.empty() || segments.back().end() != offset ||
        segments.back().size >= segment_bytes_) {
      if (absl::Status begun = Begin(stream, offset); !begun.ok()) return begun;
    }
    const absl::string_view now = bytes.substr(0, segment_bytes_ - segments.back().size);
    if (absl::Status room = MakeRoom(now.size()); !room.ok()) return room;
    LogSegment& last = segments.back();
    const FileId id(stream, last.begin);
    const auto file = FileOf(id, /*make=*/false);
    if (!file.ok()) return file.status();
    if ((*file)->size() != last.size) {
      return absl::DataLossError(absl::StrCat(PathOf(id), " has been changed by somebody else"));
    }
    unsynced_.insert(id);
    if (absl::Status written = (*file)->Append(now); !written.ok()) return written;
    last.size += now.size();
    bytes_ += now.size();
    offset += now.size();
    bytes.remove_prefix(now.size());
  }
  return absl::OkStatus();
}

absl::Status LogSegments::Sync() {
  while (!unsynced_.empty()) {
    const FileId id = *unsynced_.begin();
    const auto file = FileOf(id, /*make=*/false);
    if (!file.ok()) return file.status();
    if (absl::Status synced = (*file)->Sync(); !synced.ok()) return synced;
    unsynced_.erase(id);
  }
  if (!folder_unsynced_) return absl::OkStatus();
  absl::Status synced = os::SyncFolder(place_.folder);
  folder_unsynced_ = !synced.ok();
  return synced;
}

}  // namespace dtrain::detached
