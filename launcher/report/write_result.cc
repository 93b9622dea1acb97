// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/fd.h"
#include "common/os/unique_fd.h"
#include "launcher/report/result_json.h"

namespace dtrain::report {
namespace {

absl::Status WriteAll(int fd, absl::string_view text, absl::string_view what) {
  while (!text.empty()) {
    ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PosixError(errno, what);
    text.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

// A path that leads to an open descriptor must not be replaced by a file, even when it leads to a
// regular one.
bool IsDevice(const std::string& path) {
  struct stat status;
  return absl::StartsWith(path, "/dev/") || absl::StartsWith(path, "/proc/") ||
         (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode));
}

absl::Status WriteAsItIs(const std::string& path, absl::string_view text, absl::string_view what) {
  // Opening /dev/stdout anew fails when it is a socket.
  os::UniqueFd fd(path == "/dev/stdout"   ? fcntl(1, F_DUPFD_CLOEXEC, 3)
                  : path == "/dev/stderr" ? fcntl(2, F_DUPFD_CLOEXEC, 3)
                                          : open(path.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK |
                                                                   O_NOCTTY | O_CLOEXEC));
  if (!fd) {
    int error = errno;
    return PosixError(error, error == ENXIO ? absl::StrCat(what, " (nobody reads it)") : what);
  }
  if (path != "/dev/stdout" && path != "/dev/stderr") {
    absl::Status status = os::SetNonBlocking(fd.get(), false);
    if (!status.ok()) return status;
  }
  return WriteAll(fd.get(), text, what);
}

// The file itself when the path is a link to it, so that the link stays one.
std::string FollowLink(const std::string& path) {
  char* resolved = realpath(path.c_str(), nullptr);
  std::string result = resolved == nullptr ? path : resolved;
  free(resolved);
  return result;
}

std::string What(absl::string_view flag, const std::string& path) {
  return absl::StrCat(flag, ": write ", Escape(path));
}

}  // namespace

absl::Status CheckWritable(absl::string_view flag, const std::string& path) {
  if (IsDevice(path)) {
    struct stat status;
    if (stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
      return PosixError(EISDIR, What(flag, path));
    }
    return absl::OkStatus();
  }
  std::string real = FollowLink(path);
  size_t slash = real.rfind('/');
  std::string dir = slash == std::string::npos ? "." : slash == 0 ? "/" : real.substr(0, slash);
  if (access(dir.c_str(), W_OK | X_OK) != 0) return PosixError(errno, What(flag, path));
  return absl::OkStatus();
}

absl::Status WriteResult(const std::string& path, absl::string_view text) {
  return WriteWhole("--result-json", path, text);
}

absl::Status WriteWhole(absl::string_view flag, const std::string& path, absl::string_view text) {
  const std::string what = What(flag, path);
  if (IsDevice(path)) return WriteAsItIs(path, text, what);
  std::string real = FollowLink(path);
  std::string temporary = absl::StrCat(real, ".", os::RandomHex(8), ".tmp");
  os::UniqueFd fd(
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd) return PosixError(errno, what);
  absl::Status status = WriteAll(fd.get(), text, what);
  if (status.ok()) status = os::CloseWritten(std::move(fd), what);
  if (status.ok() && rename(temporary.c_str(), real.c_str()) != 0) status = PosixError(errno, what);
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace dtrain::report
