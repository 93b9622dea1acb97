// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/journal_file.h"

#include <filesystem>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/os/fd.h"

namespace dtrain::detached {
namespace {

constexpr size_t kAll = std::numeric_limits<size_t>::max();

absl::StatusOr<journal::Contents> ReplayAll(const absl::StatusOr<std::string>& bytes,
                                            const std::string& path) {
  if (!bytes.ok()) return bytes.status();
  auto contents = journal::Read(*bytes);
  if (contents.ok()) return contents;
  return absl::Status(contents.status().code(),
                      absl::StrCat(path, ": ", contents.status().message()));
}

}  // namespace

absl::Status JournalFile::Create(const std::string& path, absl::string_view job_id,
                                 absl::string_view build, const v1::Accepted& accepted) {
  v1::JournalRecord record;
  *record.mutable_accepted() = accepted;
  std::string frames;
  absl::Status status = journal::AppendRecord(journal::Header(job_id, build), true, &frames);
  if (status.ok()) status = journal::AppendRecord(record, false, &frames);
  if (!status.ok()) return status;
  auto file = os::AppendFile::Create(path);
  if (!file.ok()) return file.status();
  status = file->Append(frames);
  return status.ok() ? file->Sync() : status;
}

absl::StatusOr<std::pair<JournalFile, journal::Contents>> JournalFile::Open(
    const std::string& path) {
  auto file = os::AppendFile::Open(path);
  if (!file.ok()) return file.status();
  auto contents = ReplayAll(file->Read(0, kAll), path);
  if (!contents.ok()) return contents.status();
  if (contents->good_bytes < file->size()) {
    if (absl::Status cut = file->CutTo(contents->good_bytes); !cut.ok()) return cut;
  }
  JournalFile journal(path, *std::move(file));
  // What a launcher wrote before it was killed need not be on disk; the first frame that is
  // appended now says that it is. So need its name, after a compaction.
  journal.folder_synced_ = false;
  if (absl::Status synced = journal.SyncAll(); !synced.ok()) return synced;
  return std::make_pair(std::move(journal), *std::move(contents));
}

absl::StatusOr<journal::Contents> JournalFile::Read(const std::string& path) {
  return ReplayAll(os::ReadSmallFile(path, kAll), path);
}

absl::Status JournalFile::SyncAll() {
  if (absl::Status synced = file_.Sync(); !synced.ok()) return synced;
  if (folder_synced_) return absl::OkStatus();
  absl::Status folder = os::SyncFolder(std::filesystem::path(path_).parent_path());
  folder_synced_ = folder.ok();
  return folder;
}

absl::Status JournalFile::Commit(absl::string_view frames) {
  absl::Status status;
  // What failed before: the system may have dropped it.
  if (file_.size() != synced_) status = file_.CutTo(synced_);
  if (status.ok()) status = file_.Append(frames);
  if (status.ok()) status = SyncAll();
  if (status.ok()) synced_ = file_.size();
  return status;
}

absl::Status JournalFile::Replace(absl::string_view frames, bool& replaced) {
  const std::string draft = absl::StrCat(path_, ".new");
  std::error_code ignored;
  std::filesystem::remove(draft, ignored);  // of a launcher that was killed here
  auto file = os::AppendFile::Create(draft);
  absl::Status status = file.status();
  if (status.ok()) status = file->Append(frames);
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = os::Rename(draft, path_);
  if (!status.ok()) {
    std::filesystem::remove(draft, ignored);
    return status;
  }
  replaced = true;
  *this = JournalFile(path_, *std::move(file));
  folder_synced_ = false;
  return SyncAll();
}

}  // namespace dtrain::detached
