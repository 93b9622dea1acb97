// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/spool_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "common/base/check.h"

namespace dtrain::shepherd {
namespace {

constexpr uint64_t kReclaimStep = 4 << 20;  // a hole costs a system call and extent bookkeeping
constexpr uint64_t kScarceStep = 64 << 10;

// Another place would not help: the call is to be made again, or in another way, or what limits
// files is not the place (EFBIG: RLIMIT_FSIZE).
bool IsOfThePlace(int error) {
  switch (error) {
    case EAGAIN:
    case EINTR:
    case EINVAL:
    case ENOSYS:
    case EFBIG:
      return false;
    default:
      return true;
  }
}

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

// False, with errno: no place is left.
bool SpoolFile::OpenNext() {
  while (next_place_ < directories_.size()) {
    os::UniqueFd fd = OpenIn(directories_[next_place_++]);
    if (!fd) continue;
    files_.push_back({std::move(fd), size_});
    return true;
  }
  if (in_memory()) return false;  // errno is of the write that failed
  os::UniqueFd fd(memfd_create("dtrain-log", MFD_CLOEXEC));
  if (!fd) return false;
  files_.push_back({std::move(fd), size_, /*in_memory=*/true});
  return true;
}

template <typename Append>
ssize_t SpoolFile::Take(Append append) {
  if (files_.empty() && !OpenNext()) return -1;
  while (true) {
    const File& file = files_.back();
    const ssize_t n = append(file.fd.get(), static_cast<off64_t>(size_ - file.begin));
    if (n > 0) size_ += static_cast<uint64_t>(n);
    if (n >= 0 || !IsOfThePlace(errno)) return n;
    if (!OpenNext()) return -1;
  }
}

ssize_t SpoolFile::Splice(int pipe, size_t most) {
  return Take([&](int fd, off64_t at) {
    return splice(pipe, nullptr, fd, &at, most, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  });
}

ssize_t SpoolFile::Write(const char* data, size_t length) {
  return Take([&](int fd, off64_t at) { return pwrite(fd, data, length, at); });
}

SpoolFile::Place SpoolFile::Find(uint64_t offset) const {
  DTRAIN_CHECK(offset >= kept_from_ && offset < size_);
  uint64_t end = size_;
  for (auto file = files_.rbegin();; ++file) {
    if (offset >= file->begin) {
      return {file->fd.get(), static_cast<off64_t>(offset - file->begin), end - offset};
    }
    end = file->begin;
  }
}

void SpoolFile::Reclaim(uint64_t offset, bool scarce) {
  while (files_.size() > 1 && files_[1].begin <= offset) {
    kept_from_ = reclaimed_ = files_[1].begin;
    files_.pop_front();
  }
  if (files_.empty()) return;
  const File& file = files_.front();
  const uint64_t step = scarce || file.in_memory ? kScarceStep : kReclaimStep;
  // In the file, where holes begin and end with its blocks.
  const uint64_t end = file.begin + (offset - file.begin) / step * step;
  if (end <= reclaimed_) return;
  // Where holes are not supported the file only takes more room.
  if (fallocate(file.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(reclaimed_ - file.begin),
                static_cast<off_t>(end - reclaimed_)) == 0) {
    kept_from_ = end;
  }
  reclaimed_ = end;
}

}  // namespace dtrain::shepherd
