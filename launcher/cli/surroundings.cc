// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "common/os/environment.h"
#include "common/os/fd.h"
#include "common/os/private_file.h"
#include "common/os/unique_fd.h"
#include "launcher/cli/options.h"
#include "launcher/hosts/read_hostfile.h"

namespace dtrain::cli {
namespace {

// $PWD when it is this directory: it keeps the name under which other machines know it too, where
// getcwd gives that of an automounter's or a link's target.
std::string WorkingDirectory() {
  const char* pwd = getenv("PWD");
  struct stat named;
  struct stat here;
  if (pwd != nullptr && pwd[0] == '/' && stat(pwd, &named) == 0 && stat(".", &here) == 0 &&
      named.st_dev == here.st_dev && named.st_ino == here.st_ino) {
    return pwd;
  }
  char* path = getcwd(nullptr, 0);
  std::string result = path == nullptr ? "" : path;
  free(path);
  return result;
}

bool IsScript(const std::string& path) {
  // Opening someone's FIFO would wait for its writer.
  const os::UniqueFd file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  struct stat info;
  char begin[2] = {};
  return file && fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode) &&
         faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0 &&
         pread(file.get(), begin, sizeof(begin), 0) == sizeof(begin) && begin[0] == '#' &&
         begin[1] == '!';
}

// After sudo -E and su -p the variables name another user's, whose commands we would run.
absl::Status CheckConfig(const std::string& path) {
  const absl::StatusOr<bool> there = os::Exists(path);
  if (there.ok() && !*there) return absl::NotFoundError(path);
  return os::CheckTrustedFile(path);
}

}  // namespace

std::optional<absl::string_view> FindVariable(const Surroundings& surroundings,
                                              absl::string_view name) {
  for (const std::string& entry : surroundings.environment) {
    if (entry.size() > name.size() && entry[name.size()] == '=' &&
        absl::string_view(entry).substr(0, name.size()) == name) {
      return absl::string_view(entry).substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

Surroundings ProcessSurroundings() {
  Surroundings surroundings;
  surroundings.environment = os::OwnEnvironment();
  surroundings.working_directory = WorkingDirectory();
  surroundings.read = hosts::ReadHostfile;
  surroundings.check = CheckConfig;
  surroundings.warn = [](const std::string& warning) {
    std::fprintf(stderr, "dtrain: warning: %s\n", warning.c_str());
  };
  surroundings.is_script = IsScript;
  return surroundings;
}

}  // namespace dtrain::cli
