// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/runtime_dir.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/posix_error.h"

namespace dtrain::status {
namespace {

constexpr char kSocketEnd[] = ".sock";

bool IsDirectory(const std::string& path) {
  struct stat status;
  return !path.empty() && path[0] == '/' && stat(path.c_str(), &status) == 0 &&
         S_ISDIR(status.st_mode);
}

std::string FromEnvironment(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<std::string> Choose() {
  const std::string xdg = FromEnvironment("XDG_RUNTIME_DIR");
  if (IsDirectory(xdg)) return xdg + "/dtrain";
  const std::string user = absl::StrCat("/run/user/", geteuid());
  if (IsDirectory(user) && access(user.c_str(), W_OK) == 0) return user + "/dtrain";
  if (geteuid() == 0 && IsDirectory("/run")) return "/run/dtrain";
  const std::string home = FromEnvironment("HOME");
  if (!IsDirectory(home)) {
    return absl::NotFoundError("there is no XDG_RUNTIME_DIR and no home directory");
  }
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  std::error_code ignored;  // found out when the last one is made
  std::filesystem::create_directories(home + "/.cache/dtrain", ignored);
  // Homes may be shared by many machines.
  return absl::StrCat(home, "/.cache/dtrain/run-", host);
}

// Connected, or why not.
std::pair<os::UniqueFd, int> Dial(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof(name.sun_path)) return {os::UniqueFd(), ENAMETOOLONG};
  memcpy(name.sun_path, path.c_str(), path.size() + 1);
  os::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return {os::UniqueFd(), errno};
  const int rc = connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name));
  return {std::move(fd), rc == 0 ? 0 : errno};
}

}  // namespace

absl::StatusOr<std::string> RuntimeDirectory() {
  absl::StatusOr<std::string> path = Choose();
  if (!path.ok()) return path.status();
  if (mkdir(path->c_str(), 0700) != 0 && errno != EEXIST) {
    return PosixError(errno, absl::StrCat("make directory ", *path));
  }
  struct stat status;
  if (lstat(path->c_str(), &status) != 0) return PosixError(errno, absl::StrCat("look at ", *path));
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(*path, " is not a directory that belongs to this user alone (mode 0700)"));
  }
  return path;
}

std::string SocketPath(const std::string& directory, const std::string& job) {
  return absl::StrCat(directory, "/", job, kSocketEnd);
}

std::vector<LiveJob> FindJobs(const std::string& directory) {
  std::vector<LiveJob> jobs;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string path = entry.path();
    const std::string name = entry.path().filename();
    if (!absl::EndsWith(name, kSocketEnd)) continue;
    auto [fd, why] = Dial(path);
    const std::string id(absl::StripSuffix(name, kSocketEnd));
    if (why == ECONNREFUSED) {
      unlink(path.c_str());
      unlink(absl::StrCat(directory, "/", id, ".token").c_str());
    }
    ucred peer{};
    socklen_t size = sizeof(peer);
    if (why != 0 || getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) continue;
    jobs.push_back({id, path, peer.pid});
  }
  std::sort(jobs.begin(), jobs.end(),
            [](const LiveJob& a, const LiveJob& b) { return a.id < b.id; });
  return jobs;
}

}  // namespace dtrain::status
