// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/runtime_dir.h"

#include <pwd.h>
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

// Whether we may make a folder there that others cannot take away. After su and sudo the variables
// may be those of another user.
bool IsUsable(const std::string& path) {
  struct stat status;
  if (!IsDirectory(path) || access(path.c_str(), W_OK) != 0) return false;
  return geteuid() != 0 || (stat(path.c_str(), &status) == 0 && status.st_uid == 0);
}

std::string Home() {
  const std::string home = FromEnvironment("HOME");
  if (IsUsable(home)) return home;
  const passwd* account = getpwuid(geteuid());  // cron and containers set nothing
  return account != nullptr && IsUsable(account->pw_dir) ? account->pw_dir : "";
}

std::vector<std::string> PlacesOutsideHome() {
  std::vector<std::string> parents = {FromEnvironment("XDG_RUNTIME_DIR"),
                                      absl::StrCat("/run/user/", geteuid())};
  if (geteuid() == 0) parents.emplace_back("/run");
  std::vector<std::string> places;
  for (const std::string& parent : parents) {
    const std::string place = parent + "/dtrain";
    const bool known = std::find(places.begin(), places.end(), place) != places.end();
    if (IsUsable(parent) && !known) places.push_back(place);
  }
  return places;
}

// Where launchers of this user may be found, best first. It depends on how they were started and on
// who is logged in: logind makes /run/user/UID for the first login, and removes it after the last.
// A home, which may be on a file server that is down, is looked at only where that is needed.
std::vector<std::string> Places(bool all) {
  std::vector<std::string> places = PlacesOutsideHome();
  if (!places.empty() && (!all || geteuid() == 0)) return places;
  if (const std::string home = Home(); !home.empty()) {
    char host[256] = "";
    gethostname(host, sizeof(host) - 1);
    // Homes may be shared by many machines.
    places.push_back(absl::StrCat(home, "/.cache/dtrain/run-", host));
  }
  return places;
}

absl::Status CheckPrivate(const std::string& path) {
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) return PosixError(errno, absl::StrCat("look at ", path));
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " is not a directory that belongs to this user alone (mode 0700)"));
  }
  return absl::OkStatus();
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
  const std::vector<std::string> places = Places(/*all=*/false);
  if (places.empty()) {
    return absl::NotFoundError("neither XDG_RUNTIME_DIR nor a home directory is set");
  }
  const std::string& path = places.front();
  std::error_code ignored;  // found out when the last one is made
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return PosixError(errno, absl::StrCat("make directory ", path));
  }
  if (absl::Status is_private = CheckPrivate(path); !is_private.ok()) return is_private;
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

namespace {

std::vector<LiveJob> FindJobsIn(const std::vector<std::string>& places) {
  std::vector<LiveJob> jobs;
  for (const std::string& place : places) {
    if (!CheckPrivate(place).ok()) continue;
    for (LiveJob& job : FindJobs(place)) jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace

std::vector<LiveJob> FindAllJobs() { return FindJobsIn(Places(/*all=*/true)); }

std::vector<LiveJob> FindJobsOutsideHome() { return FindJobsIn(PlacesOutsideHome()); }

}  // namespace dtrain::status
