// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/spool_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/posix_error.h"

namespace dtrain::shepherd {
namespace {

constexpr uint64_t kReclaimStep = 4 << 20;  // a hole costs a system call and extent bookkeeping
constexpr uint64_t kScarceStep = 64 << 10;

os::UniqueFd OpenIn(const std::string& directory) {
  os::UniqueFd fd(open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
  // A file system without O_TMPFILE (older overlayfs, some network ones).
  std::string name = directory + "/dtrain-log-XXXXXX";
  fd.Reset(mkostemp(name.data(), O_CLOEXEC));
  if (fd) unlink(name.c_str());
  return fd;
}

}  // namespace

absl::StatusOr<SpoolFile> SpoolFile::Open(const std::vector<std::string>& directories) {
  for (const std::string& directory : directories) {
    if (os::UniqueFd fd = OpenIn(directory)) return SpoolFile(std::move(fd));
  }
  os::UniqueFd fd(memfd_create("dtrain-log", MFD_CLOEXEC));
  if (fd) return SpoolFile(std::move(fd));
  return PosixError(errno, "make a file for a worker's output");
}

void SpoolFile::Reclaim(uint64_t offset, bool scarce) {
  const uint64_t step = scarce ? kScarceStep : kReclaimStep;
  const uint64_t end = offset / step * step;
  if (end <= reclaimed_) return;
  // Where holes are not supported the file only takes more room.
  if (fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(reclaimed_), static_cast<off_t>(end - reclaimed_)) == 0) {
    kept_from_ = end;
  }
  reclaimed_ = end;
}

}  // namespace dtrain::shepherd
