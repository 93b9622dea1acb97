// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"

namespace dtrain::os {

// A file that grows at its end, for its owner only. What was appended survives a crash of the
// machine once Sync has succeeded. One thread at a time; calls may block.
class AppendFile {
 public:
  // ALREADY_EXISTS: something has that name.
  static absl::StatusOr<AppendFile> Create(const std::string& path);
  // Continues an existing regular file at its end. Links are not followed.
  static absl::StatusOr<AppendFile> Open(const std::string& path);

  uint64_t size() const { return size_; }
  // All of `bytes`, or nothing: after a failure the file is as long as before.
  absl::Status Append(absl::string_view bytes);
  absl::Status CutTo(uint64_t size);
  // Also fails when somebody has removed the file. After a failure the system may have dropped what
  // was appended since the last success, and may report success the next time: cut it off and
  // append it again.
  absl::Status Sync();
  // Up to `limit` bytes from `offset` on; fewer at the end.
  absl::StatusOr<std::string> Read(uint64_t offset, size_t limit) const;

 private:
  AppendFile(std::string path, UniqueFd fd, uint64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}
  std::string path_;
  UniqueFd fd_;
  uint64_t size_;
  bool tail_left_ = false;  // behind size_, of an Append that failed
};

// Makes what was created, renamed or removed in a folder survive a crash of the machine.
absl::Status SyncFolder(const std::string& path);

// Makes or replaces a file, for its owner only. After a crash of the machine it has all of `bytes`
// or is as it was before; once this has succeeded, `bytes`.
absl::Status ReplaceFile(const std::string& path, absl::string_view bytes);

// Of a file or a folder. A file that has that name already is replaced.
absl::Status Rename(const std::string& from, const std::string& to);

}  // namespace dtrain::os
