// SPDX-License-Identifier: Apache-2.0
#include "common/os/output_file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/posix_error.h"

namespace dtrain::os {
namespace {

constexpr int kMostLinks = 40;  // the kernel's limit

bool MayFollow(const struct stat& folder, const struct stat& entry) {
  const mode_t shared = S_ISVTX | S_IWOTH;
  return (folder.st_mode & shared) != shared || entry.st_uid == geteuid() ||
         entry.st_uid == folder.st_uid;
}

// Walks a path, one name at a time.
class Walk {
 public:
  Walk(std::string path, absl::string_view what, UniqueFd start = UniqueFd())
      : rest_(std::move(path)), what_(what), folder_(std::move(start)) {}

  absl::StatusOr<FilePlace> ToFile() {
    std::string name;
    for (absl::Status status = Begin();;) {
      if (!status.ok()) return status;
      name = Next();
      if (rest_.find_first_not_of('/') != std::string::npos) {
        status = Enter(name, /*make=*/false);
        continue;
      }
      if (!rest_.empty() || name.empty() || name == "." || name == "..") {
        return PosixError(EISDIR, what_);
      }
      UniqueFd found(openat(folder_.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
      struct stat info;
      if (!found && errno != ENOENT) return PosixError(errno, what_);
      if (found && fstat(found.get(), &info) != 0) return PosixError(errno, what_);
      if (!found || !S_ISLNK(info.st_mode)) return FilePlace{std::move(folder_), std::move(name)};
      status = Follow(found.get(), info, name);
    }
  }

  absl::StatusOr<UniqueFd> ToFolder() {
    absl::Status status = Begin();
    for (std::string name; status.ok() && !(name = Next()).empty();) {
      status = Enter(name, /*make=*/true);
    }
    if (!status.ok()) return status;
    return std::move(folder_);
  }

 private:
  absl::Status Begin() {
    const bool absolute = !rest_.empty() && rest_[0] == '/';
    if (absolute || !folder_) {
      folder_.Reset(open(absolute ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
    }
    return folder_ ? absl::OkStatus() : PosixError(errno, what_);
  }

  std::string Next() {
    const size_t begin = rest_.find_first_not_of('/');
    if (begin == std::string::npos) {
      rest_.clear();
      return "";
    }
    const size_t end = rest_.find('/', begin);
    std::string name = rest_.substr(begin, end == std::string::npos ? end : end - begin);
    rest_ = end == std::string::npos ? "" : rest_.substr(end);
    return name;
  }

  absl::Status Enter(const std::string& name, bool make) {
    // O_DIRECTORY also mounts what an automounter has there.
    const int flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    UniqueFd next(openat(folder_.get(), name.c_str(), flags));
    if (!next && errno == ENOENT && make) {
      if (mkdirat(folder_.get(), name.c_str(), 0777) != 0 && errno != EEXIST) {
        return PosixError(errno, what_);
      }
      next.Reset(openat(folder_.get(), name.c_str(), flags));
    }
    if (next) {
      folder_ = std::move(next);
      return absl::OkStatus();
    }
    if (errno != ENOTDIR && errno != ELOOP) return PosixError(errno, what_);
    UniqueFd found(openat(folder_.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat info;
    if (!found || fstat(found.get(), &info) != 0) return PosixError(errno, what_);
    if (!S_ISLNK(info.st_mode)) return PosixError(ENOTDIR, what_);
    return Follow(found.get(), info, name);
  }

  absl::Status Follow(int link, const struct stat& info, absl::string_view name) {
    struct stat folder;
    if (fstat(folder_.get(), &folder) != 0) return PosixError(errno, what_);
    if (!MayFollow(folder, info)) {
      return absl::PermissionDeniedError(
          absl::StrCat(what_, ": ", name, " is a symbolic link that user ", info.st_uid,
                       " made in a world-writable folder; remove it, or write elsewhere"));
    }
    if (++links_ > kMostLinks) return PosixError(ELOOP, what_);
    char target[PATH_MAX];
    const ssize_t n = readlinkat(link, "", target, sizeof(target));
    if (n < 0) return PosixError(errno, what_);
    rest_ = absl::StrCat(absl::string_view(target, static_cast<size_t>(n)), rest_);
    return Begin();
  }

  std::string rest_;  // not walked yet
  const absl::string_view what_;
  UniqueFd folder_;
  int links_ = 0;
};

}  // namespace

std::optional<int> DescriptorOf(const std::string& path) {
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  absl::string_view number = path;
  int fd = -1;
  const bool named =
      absl::ConsumePrefix(&number, "/dev/fd/") || absl::ConsumePrefix(&number, "/proc/self/fd/");
  if (!named || !absl::SimpleAtoi(number, &fd) || fd < 0) return std::nullopt;
  return fd;
}

absl::Status CheckMaker(int folder, int file, absl::string_view what) {
  struct stat place;
  struct stat info;
  if (fstat(folder, &place) != 0 || fstat(file, &info) != 0) return PosixError(errno, what);
  if (S_ISCHR(info.st_mode) || MayFollow(place, info)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(what, ": it is user ", info.st_uid,
                   "'s, in a folder that all may write to; remove it, or write elsewhere"));
}

absl::StatusOr<FilePlace> PlaceOfFile(const std::string& path, absl::string_view what) {
  if (path.empty()) return PosixError(ENOENT, what);
  return Walk(path, what).ToFile();
}

absl::StatusOr<UniqueFd> MakeFolders(const std::string& path, absl::string_view what) {
  if (path.empty()) return PosixError(ENOENT, what);
  return Walk(path, what).ToFolder();
}

absl::StatusOr<UniqueFd> MakeFoldersIn(UniqueFd folder, const std::string& path,
                                       absl::string_view what) {
  if (path.empty()) return PosixError(ENOENT, what);
  return Walk(path, what, std::move(folder)).ToFolder();
}

}  // namespace dtrain::os
