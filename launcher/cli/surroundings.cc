// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/os/environment.h"
#include "common/os/unique_fd.h"
#include "launcher/cli/options.h"
#include "launcher/cli/slurm_job.h"
#include "launcher/cli/written_by.h"
#include "launcher/hosts/hostfile.h"

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

// After sudo -E and su -p the variables name another user's, whose commands we would run. What lies
// above the configuration of all programs may be of whoever manages homes.
absl::Status CheckConfig(const std::string& path) {
  std::string each = path;
  for (int level = 0; level < 3 && !each.empty(); ++level) {
    struct stat info;
    if (stat(each.c_str(), &info) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) return absl::NotFoundError(path);
      return PosixError(errno, absl::StrCat("look at ", each));
    }
    const std::string who = WhoElseWrites(info, geteuid());
    if (!who.empty()) return absl::PermissionDeniedError(absl::StrCat(each, " ", who));
    each.resize(each.rfind('/'));
  }
  return absl::OkStatus();
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
  surroundings.slurm_trouble = [](const std::string& id) { return SlurmJobTrouble(id); };
  return surroundings;
}

}  // namespace dtrain::cli
