// SPDX-License-Identifier: Apache-2.0
#include "common/os/program_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/posix_error.h"

namespace dtrain::os {

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
