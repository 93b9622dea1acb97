// SPDX-License-Identifier: Apache-2.0
#include "common/os/file_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"

namespace dtrain::os {
namespace {

constexpr std::chrono::milliseconds kBetweenTries(5);
// Whoever may write the file could make it longer.
constexpr off_t kMostDescription = 4096;

struct flock WholeFile() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

absl::Status LockError(absl::string_view what, const std::string& path) {
  return PosixError(errno, absl::StrCat(what, " ", path));
}

// Somebody may have removed the file, or put another there, between our open and our lock.
bool IsAt(int fd, const std::string& path) {
  struct stat ours, there;
  return fstat(fd, &ours) == 0 && stat(path.c_str(), &there) == 0 && ours.st_dev == there.st_dev &&
         ours.st_ino == there.st_ino;
}

}  // namespace

absl::StatusOr<FileLock> FileLock::Take(const std::string& path, absl::string_view description,
                                        Duration patience, absl::FunctionRef<void()> waits) {
  const TimePoint until = Clock::now() + patience;
  for (;;) {
    UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd) return LockError("open", path);
    struct flock lock = WholeFile();
    if (fcntl(fd.get(), F_OFD_SETLK, &lock) == 0) {
      if (!IsAt(fd.get(), path)) continue;
      FileLock taken(std::move(fd));
      taken.Describe(description);
      return taken;
    }
    if (errno != EAGAIN && errno != EACCES && errno != EINTR) return LockError("lock", path);
    if (Clock::now() >= until) {
      return absl::UnavailableError(absl::StrCat(path, " is locked by another process"));
    }
    waits();
    // There is no wait with a deadline for a lock, and its holder may be stopped.
    std::this_thread::sleep_for(kBetweenTries);
  }
}

absl::StatusOr<bool> FileLock::IsHeld(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!fd && errno == ENOENT) return false;
  struct flock lock = WholeFile();
  if (!fd || fcntl(fd.get(), F_OFD_GETLK, &lock) != 0)
    return LockError("look for the lock of", path);
  return lock.l_type != F_UNLCK;
}

void FileLock::Describe(absl::string_view description) {
  // Whoever reads it meanwhile shall not find the end of a longer one before: it is covered by
  // blanks in the same write, not cut off afterwards.
  std::string text(description);
  struct stat info;
  if (fstat(fd_.get(), &info) == 0 && info.st_size < kMostDescription) {
    text.resize(std::max(text.size(), static_cast<size_t>(info.st_size)), '\n');
  }
  const ssize_t n = pwrite(fd_.get(), text.data(), text.size(), 0);
  // Rather none than half of one.
  const bool whole = n == static_cast<ssize_t>(text.size());
  (void)!ftruncate(fd_.get(), whole ? n : 0);
}

}  // namespace dtrain::os
