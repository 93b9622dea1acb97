// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/launcher_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::detached {
namespace {

// A launcher that says very much is read on the next time.
constexpr size_t kMostLogBytes = 256 << 10;

}  // namespace

LauncherLog::LauncherLog(const JobFolder& job)
    : fd_(open(absl::StrCat(job.path(), "/launcher.log").c_str(),
               O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) {
  if (fd_) offset_ = lseek(fd_.get(), 0, SEEK_END);
}

std::string LauncherLog::Next(bool rest) {
  char bytes[4096];
  size_t read = 0;
  while (fd_ && read < kMostLogBytes) {
    const ssize_t size = pread(fd_.get(), bytes, sizeof(bytes), offset_);
    if (size <= 0) break;
    offset_ += size;
    read += static_cast<size_t>(size);
    line_.append(bytes, static_cast<size_t>(size));
  }
  const size_t end = rest ? line_.size() : line_.rfind('\n') + 1;  // npos + 1 is 0
  std::string lines = line_.substr(0, end);
  line_.erase(0, end);
  return lines;
}

}  // namespace dtrain::detached
