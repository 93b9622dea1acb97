// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/append_file.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/journal/records.h"

namespace dtrain::detached {

// The file of a job's journal. One thread at a time; calls may block.
class JournalFile {
 public:
  // A new one, synced.
  static absl::Status Create(const std::string& path, absl::string_view job_id,
                             absl::string_view build, const v1::Accepted& accepted);
  // One that is there: replayed, and its torn tail, if it has one, cut. Errors of journal::Read.
  static absl::StatusOr<std::pair<JournalFile, journal::Contents>> Open(const std::string& path);
  // Replayed as it is: perhaps another process writes to it.
  static absl::StatusOr<journal::Contents> Read(const std::string& path);

  // Appends frames and syncs. After a failure none of them counts, and all may be tried again.
  absl::Status Commit(absl::string_view frames);
  // Puts a file of these frames in its place. After a failure the old one goes on, or, if
  // `replaced`, the new one, which counts once a Commit has succeeded.
  absl::Status Replace(absl::string_view frames, bool& replaced);
  uint64_t size() const { return synced_; }

 private:
  JournalFile(std::string path, os::AppendFile file)
      : path_(std::move(path)), file_(std::move(file)), synced_(file_.size()) {}
  absl::Status SyncAll();

  std::string path_;
  os::AppendFile file_;
  uint64_t synced_;            // bytes of it that are on disk
  bool folder_synced_ = true;  // that has its name
};

}  // namespace dtrain::detached
