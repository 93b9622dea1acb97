// SPDX-License-Identifier: Apache-2.0
#include "common/os/private_file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/fd.h"
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
      absl::StrCat(Quoted(path), " ", what, "; fix it with: ", mend));
}

// As the kernel's.
constexpr int kMostLinksFollowed = 40;

bool OwnedByOther(const struct stat& info) { return info.st_uid != 0 && info.st_uid != geteuid(); }

// A group with its user's number is this user's own, as most distributions make them. Where they
// do, the umask is often 002.
bool WritableByOthers(const struct stat& info) {
  const bool own_group = info.st_uid != 0 && info.st_gid == info.st_uid;
  return (info.st_mode & (own_group ? 002 : 022)) != 0;
}

absl::Status CheckDirectory(const std::string& path, const struct stat& info) {
  if (OwnedByOther(info)) {
    return Denied(path, absl::StrCat("belongs to user id ", info.st_uid, ", who can replace files"),
                  absl::StrCat("chown ", geteuid(), " ", Quoted(path)));
  }
  if (WritableByOthers(info) && (info.st_mode & S_ISVTX) == 0) {
    return Denied(path,
                  absl::StrFormat("can be changed by others (mode %04o)", info.st_mode & 07777),
                  absl::StrCat("chmod go-w ", Quoted(path)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadLink(const std::string& path, const struct stat& info) {
  if (OwnedByOther(info)) {
    return Denied(
        path,
        absl::StrCat("is a symbolic link of user id ", info.st_uid, ", who can point it elsewhere"),
        absl::StrCat("chown -h ", geteuid(), " ", Quoted(path)));
  }
  char target[PATH_MAX];
  const ssize_t size = readlink(path.c_str(), target, sizeof(target));
  if (size < 0) return PosixError(errno, absl::StrCat("read the link ", path));
  return std::string(target, static_cast<size_t>(size));
}

// Checks each directory and link on the way to `path` and beyond, as the kernel goes it: who can
// change one of them chooses what is there. Returns the path without links.
absl::StatusOr<std::string> Walk(const std::string& path) {
  std::string ahead = path;
  if (!absl::StartsWith(path, "/")) {
    char here[PATH_MAX];
    if (getcwd(here, sizeof(here)) == nullptr) return PosixError(errno, "look for our directory");
    ahead = absl::StrCat(here, "/", path);
  }
  std::string at;
  for (int links = 0;;) {
    struct stat info;
    if (lstat(at.empty() ? "/" : at.c_str(), &info) != 0) {
      return PosixError(errno, absl::StrCat("look at ", Quoted(at)));
    }
    if (S_ISLNK(info.st_mode)) {
      if (++links > kMostLinksFollowed) {
        return PosixError(ELOOP, absl::StrCat("follow ", Quoted(path)));
      }
      absl::StatusOr<std::string> target = ReadLink(at, info);
      if (!target.ok()) return target;
      ahead = absl::StrCat(*target, "/", ahead);
      at.resize(absl::StartsWith(*target, "/") ? 0 : at.rfind('/'));
      continue;
    }
    const size_t begin = std::min(ahead.find_first_not_of('/'), ahead.size());
    if (S_ISDIR(info.st_mode)) {
      if (absl::Status ok = CheckDirectory(at.empty() ? "/" : at, info); !ok.ok()) return ok;
    } else if (begin < ahead.size()) {
      return PosixError(ENOTDIR, absl::StrCat("look at ", Quoted(at)));
    }
    if (begin == ahead.size()) return at.empty() ? "/" : at;
    const size_t end = std::min(ahead.find('/', begin), ahead.size());
    const std::string name = ahead.substr(begin, end - begin);
    ahead.erase(0, end);
    if (name == "..") {
      at.resize(at.empty() ? 0 : at.rfind('/'));
    } else if (name != ".") {
      absl::StrAppend(&at, "/", name);
    }
  }
}

// All above what `path` names.
absl::Status CheckDirectories(const std::string& path) {
  const size_t slash = path.rfind('/');
  return Walk(slash == path.npos ? "." : path.substr(0, slash + 1)).status();
}

absl::Status CheckFile(const std::string& path, const struct stat& info) {
  if (!S_ISREG(info.st_mode)) {
    return absl::PermissionDeniedError(
        absl::StrCat(Quoted(path), " is not a regular file; name the file itself"));
  }
  if (OwnedByOther(info)) {
    return Denied(path, absl::StrCat("belongs to user id ", info.st_uid, ", not to us or root"),
                  absl::StrCat("chown ", geteuid(), " ", Quoted(path)));
  }
  return absl::OkStatus();
}

// Without the links that end there.
absl::StatusOr<UniqueFd> Open(const std::string& path, struct stat& info) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (!fd && errno == ELOOP) {
    return absl::PermissionDeniedError(
        absl::StrCat(Quoted(path), " is a symbolic link; name the file itself"));
  }
  if (!fd || fstat(fd.get(), &info) != 0) {
    return PosixError(errno, absl::StrCat("open ", Quoted(path)));
  }
  return fd;
}

absl::StatusOr<UniqueFd> OpenPrivate(const std::string& path) {
  struct stat info;
  absl::StatusOr<UniqueFd> fd = Open(path, info);
  if (!fd.ok()) return fd;
  if (absl::Status ok = CheckFile(path, info); !ok.ok()) return ok;
  if ((info.st_mode & 077) != 0) {
    return Denied(path, absl::StrFormat("is open to others (mode %04o)", info.st_mode & 07777),
                  absl::StrCat("chmod 600 ", Quoted(path)));
  }
  if (absl::Status ok = CheckDirectories(path); !ok.ok()) return ok;
  return fd;
}

absl::StatusOr<UniqueFd> OpenTrusted(const std::string& path) {
  absl::StatusOr<std::string> real = Walk(path);
  if (!real.ok()) return real.status();
  struct stat info;
  absl::StatusOr<UniqueFd> fd = Open(*real, info);
  if (!fd.ok()) return fd;
  if (absl::Status ok = CheckFile(*real, info); !ok.ok()) return ok;
  if (WritableByOthers(info)) {
    return Denied(*real,
                  absl::StrFormat("can be written by others (mode %04o)", info.st_mode & 07777),
                  absl::StrCat("chmod go-w ", Quoted(*real)));
  }
  return fd;
}

}  // namespace

absl::Status CheckPrivateFile(const std::string& path) { return OpenPrivate(path).status(); }

absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, size_t limit) {
  absl::StatusOr<UniqueFd> fd = OpenPrivate(path);
  if (!fd.ok()) return fd.status();
  return ReadToEnd(fd->get(), path, limit);
}

absl::Status CheckTrustedFile(const std::string& path) { return OpenTrusted(path).status(); }

absl::StatusOr<std::string> ReadTrustedFile(const std::string& path, size_t limit) {
  absl::StatusOr<UniqueFd> fd = OpenTrusted(path);
  if (!fd.ok()) return fd.status();
  return ReadToEnd(fd->get(), path, limit);
}

absl::Status MakeOwnDirectory(const std::string& path, mode_t mode, mode_t most) {
  const std::string name = path.substr(0, path.find_last_not_of('/') + 1);
  if (absl::Status ok = CheckDirectories(name); !ok.ok()) return ok;
  struct stat info;
  // Only where it is missing: mkdir locks the folder above, and processes that wait for that, on a
  // file server that is down, cannot be killed.
  const bool missing = lstat(name.c_str(), &info) != 0 && errno == ENOENT;
  if (missing && mkdir(name.c_str(), mode) != 0 && errno != EEXIST) {
    return PosixError(errno, absl::StrCat("make ", Quoted(name)));
  }
  return CheckOwnDirectory(name, most);
}

absl::Status CheckOwnDirectory(const std::string& path, mode_t most) {
  const std::string name = path.substr(0, path.find_last_not_of('/') + 1);
  if (absl::Status ok = CheckDirectories(name); !ok.ok()) return ok;
  struct stat info;
  if (lstat(name.c_str(), &info) != 0) return PosixError(errno, absl::StrCat("look at ", name));
  if (!S_ISDIR(info.st_mode)) {
    return Denied(name, S_ISLNK(info.st_mode) ? "is a symbolic link" : "is not a directory",
                  absl::StrCat("rm ", Quoted(name)));
  }
  if (info.st_uid != geteuid()) {
    return Denied(name, absl::StrCat("belongs to user id ", info.st_uid),
                  absl::StrCat("chown ", geteuid(), " ", Quoted(name)));
  }
  if ((info.st_mode & 0777 & ~most) != 0) {
    return Denied(name, absl::StrFormat("is open to others (mode %04o)", info.st_mode & 07777),
                  absl::StrFormat("chmod %03o %s", most, Quoted(name)));
  }
  return absl::OkStatus();
}

bool IsOwnDirectory(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid();
}

}  // namespace dtrain::os
