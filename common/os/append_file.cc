// SPDX-License-Identifier: Apache-2.0
#include "common/os/append_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/os/fd.h"

namespace dtrain::os {
namespace {

constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;

absl::Status Failed(absl::string_view what, const std::string& path) {
  return PosixError(errno, absl::StrCat(what, " ", path));
}

}  // namespace

absl::StatusOr<AppendFile> AppendFile::Create(const std::string& path) {
  UniqueFd fd(open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0600));
  if (!fd) return Failed("make", path);
  return AppendFile(path, std::move(fd), 0);
}

absl::StatusOr<AppendFile> AppendFile::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), kFlags));
  struct stat info;
  if (!fd || fstat(fd.get(), &info) != 0) return Failed("open", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
  }
  return AppendFile(path, std::move(fd), static_cast<uint64_t>(info.st_size));
}

absl::Status AppendFile::Append(absl::string_view bytes) {
  // What is left there would show behind what is shorter.
  if (tail_left_) {
    if (absl::Status cut = CutTo(size_); !cut.ok()) return cut;
  }
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pwrite(fd_.get(), bytes.data() + done, bytes.size() - done,
                             static_cast<off_t>(size_ + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (n == 0) errno = ENOSPC;
      absl::Status failed = Failed("write", path_);
      tail_left_ = true;
      CutTo(size_).IgnoreError();  // else the next Append does it
      return failed;
    }
    done += static_cast<size_t>(n);
  }
  size_ += done;
  return absl::OkStatus();
}

absl::Status AppendFile::CutTo(uint64_t size) {
  int cut;
  do {
    cut = ftruncate(fd_.get(), static_cast<off_t>(size));
  } while (cut != 0 && errno == EINTR);
  if (cut != 0) return Failed("cut", path_);
  size_ = size;
  tail_left_ = false;
  return absl::OkStatus();
}

absl::Status AppendFile::Sync() {
  if (fdatasync(fd_.get()) != 0) return Failed("sync", path_);
  struct stat info;
  if (fstat(fd_.get(), &info) != 0) return Failed("look at", path_);
  if (info.st_nlink > 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_, " was removed"));
}

absl::StatusOr<std::string> AppendFile::Read(uint64_t offset, size_t limit) const {
  std::string bytes(std::min<uint64_t>(limit, offset < size_ ? size_ - offset : 0), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pread(fd_.get(), bytes.data() + done, bytes.size() - done,
                            static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("read", path_);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

absl::Status SyncFolder(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return Failed("open", path);
  // Some file systems do not know that of folders, and have nothing to do then.
  if (fsync(fd.get()) != 0 && errno != EINVAL) return Failed("sync", path);
  return absl::OkStatus();
}

absl::Status ReplaceFile(const std::string& path, absl::string_view bytes) {
  const std::string draft = absl::StrCat(path, ".", RandomHex(4), ".new");
  absl::StatusOr<AppendFile> file = AppendFile::Create(draft);
  absl::Status written = file.status();
  if (written.ok()) written = file->Append(bytes);
  if (written.ok()) written = file->Sync();
  if (written.ok()) written = Rename(draft, path);
  if (!written.ok()) {
    (void)unlink(draft.c_str());
    return written;
  }
  return SyncFolder(path.substr(0, path.rfind('/') + 1));
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return PosixError(errno, absl::StrCat("rename ", from, " to ", to));
}

}  // namespace dtrain::os
