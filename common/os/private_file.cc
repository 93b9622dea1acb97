// SPDX-License-Identifier: Apache-2.0
#include "common/os/private_file.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/unique_fd.h"

namespace dtrain::os {
namespace {

// As a word of a shell command that may be copied.
std::string Quoted(absl::string_view path) {
  const std::string shown = Escape(path, PATH_MAX);
  constexpr char kPlain[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@%=:,";
  if (shown.find_first_not_of(kPlain) == shown.npos) return shown;
  return absl::StrCat("'", absl::StrReplaceAll(shown, {{"'", "'\\''"}}), "'");
}

absl::Status Denied(const std::string& path, absl::string_view what, absl::string_view mend) {
  return absl::PermissionDeniedError(
      absl::StrCat(Quoted(path), " ", what, "; mend it with: ", mend));
}

bool OwnedByOther(const struct stat& info) { return info.st_uid != 0 && info.st_uid != geteuid(); }

absl::Status CheckDirectory(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return PosixError(errno, absl::StrCat("look at ", path));
  if (OwnedByOther(info)) {
    return Denied(path, absl::StrCat("belongs to user id ", info.st_uid, ", who can replace files"),
                  absl::StrCat("chown ", geteuid(), " ", Quoted(path)));
  }
  if ((info.st_mode & 022) != 0 && (info.st_mode & S_ISVTX) == 0) {
    return Denied(path,
                  absl::StrFormat("can be changed by others (mode %04o)", info.st_mode & 07777),
                  absl::StrCat("chmod go-w ", Quoted(path)));
  }
  return absl::OkStatus();
}

// The directory of `path` and all above it, after their links.
absl::Status CheckDirectories(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == path.npos ? "." : path.substr(0, slash + 1);
  char resolved[PATH_MAX];
  if (realpath(directory.c_str(), resolved) == nullptr) {
    return PosixError(errno, absl::StrCat("look for ", directory));
  }
  std::string at = resolved;
  for (;;) {
    if (absl::Status ok = CheckDirectory(at); !ok.ok()) return ok;
    if (at == "/") return absl::OkStatus();
    at.resize(std::max<size_t>(at.rfind('/'), 1));
  }
}

absl::Status CheckOpened(const std::string& path, int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return PosixError(errno, absl::StrCat("look at ", path));
  if (!S_ISREG(info.st_mode)) {
    return absl::PermissionDeniedError(
        absl::StrCat(Quoted(path), " is no regular file; name the file that holds the secret"));
  }
  if (OwnedByOther(info)) {
    return Denied(path, absl::StrCat("belongs to user id ", info.st_uid, ", not to us or root"),
                  absl::StrCat("chown ", geteuid(), " ", Quoted(path)));
  }
  if ((info.st_mode & 077) != 0) {
    return Denied(path, absl::StrFormat("is open to others (mode %04o)", info.st_mode & 07777),
                  absl::StrCat("chmod 600 ", Quoted(path)));
  }
  return CheckDirectories(path);
}

absl::StatusOr<UniqueFd> Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (!fd && errno == ELOOP) {
    return absl::PermissionDeniedError(
        absl::StrCat(Quoted(path), " is a symbolic link; name the file itself"));
  }
  if (!fd) return PosixError(errno, absl::StrCat("open ", Quoted(path)));
  if (absl::Status ok = CheckOpened(path, fd.get()); !ok.ok()) return ok;
  return fd;
}

}  // namespace

absl::Status CheckPrivateFile(const std::string& path) { return Open(path).status(); }

absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, size_t limit) {
  absl::StatusOr<UniqueFd> fd = Open(path);
  if (!fd.ok()) return fd.status();
  std::string out(limit + 1, '\0');
  size_t size = 0;
  while (size < out.size()) {
    const ssize_t n = read(fd->get(), out.data() + size, out.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PosixError(errno, absl::StrCat("read ", Quoted(path)));
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  if (size > limit) {
    return absl::ResourceExhaustedError(absl::StrCat(path, " has more than ", limit, " bytes"));
  }
  out.resize(size);
  return out;
}

}  // namespace dtrain::os
