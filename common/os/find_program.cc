// SPDX-License-Identifier: Apache-2.0
#include "common/os/find_program.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"

namespace dtrain::os {
namespace {

// Of PATH in a message: enough to tell a login's from a bare one.
constexpr size_t kShownPath = 60;

// 0 when `path` is a file we may execute.
int CannotExecute(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return errno;
  if (S_ISDIR(info.st_mode)) return EISDIR;
  if (!S_ISREG(info.st_mode)) return EACCES;
  return faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

}  // namespace

std::string Joined(absl::string_view directory, absl::string_view file) {
  if (directory.empty() || (!file.empty() && file[0] == '/')) return std::string(file);
  return absl::StrCat(directory, directory.back() == '/' ? "" : "/", file);
}

absl::StatusOr<std::string> FindProgram(absl::string_view program, absl::string_view search_path,
                                        absl::string_view working_directory, SpawnError* error) {
  auto fail = [&](int e, std::string path, std::string what) {
    *error = {SpawnStage::kProgram, e, std::move(path)};
    return PosixError(e, what);
  };
  std::string shown = Escape(program);
  if (program.empty()) return fail(ENOENT, "", "run a program with an empty name");
  if (program.find('/') != absl::string_view::npos) {
    std::string path = Joined(working_directory, program);
    int e = CannotExecute(path);
    if (e != 0) return fail(e, path, absl::StrCat("run ", Escape(path)));
    return path;
  }
  int worst = ENOENT;
  std::string worst_path, closed;
  for (absl::string_view directory : absl::StrSplit(search_path, ':')) {
    std::string path = Joined(Joined(working_directory, directory), program);
    int e = CannotExecute(path);
    if (e == 0) return path;
    if (e == EACCES && faccessat(AT_FDCWD, path.c_str(), F_OK, AT_EACCESS) != 0) {
      // Whether it is there is not known: a folder of another user's, as sudo leaves them in PATH.
      if (closed.empty()) closed = absl::StrCat("; no permission to look into ", Escape(directory));
      continue;
    }
    // As execvp: a file that is there but cannot be run is worth telling, if nothing better comes.
    if ((e == EACCES || e == EISDIR) && worst == ENOENT) {
      worst = e;
      worst_path = path;
    }
  }
  if (worst == ENOENT) {
    return fail(
        worst, std::string(program),
        absl::StrCat("find ", shown, " in PATH (", Escape(search_path, kShownPath), ")", closed));
  }
  return fail(worst, worst_path, absl::StrCat("run ", Escape(worst_path)));
}

absl::StatusOr<std::string> ProgramPath() {
  std::string path(4096, '\0');
  const ssize_t size = readlink(kThisProgram, path.data(), path.size());
  if (size < 0) return PosixError(errno, "read /proc/self/exe");
  path.resize(static_cast<size_t>(size));
  return path;
}

std::string SameProgram() {
  const auto path = ProgramPath();
  struct stat there, ours;
  const bool same = path.ok() && stat(path->c_str(), &there) == 0 &&
                    stat(kThisProgram, &ours) == 0 && there.st_dev == ours.st_dev &&
                    there.st_ino == ours.st_ino;
  return same ? *path : kThisProgram;
}

}  // namespace dtrain::os
