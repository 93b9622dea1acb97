// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/read_hostfile.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"

namespace dtrain::hosts {
namespace {

absl::string_view KindName(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "not a regular file";
}

absl::StatusOr<std::string> ReadAll(int fd, const std::string& what) {
  std::string text;
  char buffer[65536];
  while (true) {
    ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PosixError(errno, what);
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    // While reading, too: a file may grow, and procfs files claim to be empty.
    if (text.size() > kMaxHostfileBytes) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": ", PosixErrorText(EFBIG),
                                                     ": more than ", kMaxHostfileBytes, " bytes"));
    }
  }
}

}  // namespace

absl::StatusOr<std::string> ReadHostfile(const std::string& path) {
  std::string what = absl::StrCat("cannot read ", Escape(path, 4096));
  if (path.empty()) return absl::InvalidArgumentError("cannot read a host file: its name is empty");
  if (path.find('\0') != std::string::npos) return PosixError(EINVAL, what);
  // A named pipe would block open() and every read() without O_NONBLOCK.
  int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return PosixError(errno, what);
  struct stat info {};
  absl::StatusOr<std::string> text = std::string();
  if (fstat(fd, &info) != 0) {
    text = PosixError(errno, what);
  } else if (!S_ISREG(info.st_mode)) {
    int error_number = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
    text = absl::InvalidArgumentError(absl::StrCat(what, ": ", PosixErrorText(error_number),
                                                   ": it is ", KindName(info.st_mode),
                                                   ", give a regular file"));
  } else {
    text = ReadAll(fd, what);
  }
  close(fd);
  if (!text.ok()) return text;
  if (size_t nul = text->find('\0'); nul != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", PosixErrorText(EINVAL),
                                                   ": NUL byte at offset ", nul,
                                                   ", this is not a text file"));
  }
  return text;
}

}  // namespace dtrain::hosts
