// SPDX-License-Identifier: Apache-2.0
#include "agent/keep.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/resident.h"
#include "common/base/clock.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/environment.h"
#include "common/os/file_system.h"
#include "common/os/local_folder.h"
#include "common/os/pidfd.h"
#include "common/os/private_file.h"
#include "common/os/spawn.h"

namespace dtrain::agent {
namespace {

// Of the path of its directory: below it are jobs/JOB.ATTEMPT/shepherd.sock, and a socket's name
// has 107 bytes.
constexpr size_t kMostOfPath = 63;
constexpr size_t kHashDigits = 12;
// For one that starts: it first takes over jobs that another has left.
constexpr Duration kStartLimit = std::chrono::seconds(30);
// gRPC speaks first, as soon as it is connected.
constexpr Duration kAnswerLimit = std::chrono::seconds(5);
constexpr int kDialPauseMs = 20;
constexpr char kTmp[] = "/var/tmp";
constexpr off_t kMostOfLog = 1 << 20;

std::string BuildFolder() {
  const std::string build = BuildId();
  return absl::StrCat("keep-", build.substr(build.find(' ') + 1, kHashDigits));
}

// The home is looked up where nothing is set, as in containers.
std::string CacheDirectory() {
  const char* cache = getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/' && os::IsOwnDirectory(cache)) return cache;
  const char* home = getenv("HOME");
  if (home == nullptr || home[0] != '/' || !os::IsOwnDirectory(home)) {
    const passwd* account = getpwuid(geteuid());
    home = account != nullptr ? account->pw_dir : "";
  }
  return os::IsOwnDirectory(home) ? absl::StrCat(home, "/.cache") : "";
}

bool IsOnFileServer(const std::string& path) {
  const os::UniqueFd fd(open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return true;
  auto type = os::FileSystemOf(fd.get());
  return type.ok() && os::IsShared(*type);
}

// A folder of ours and of nobody else, or why it is not. `make`: where it is missing, it is made.
absl::Status Take(const std::string& path, bool make) {
  return make ? os::MakeOwnDirectory(path, 0700, 0700) : os::CheckOwnDirectory(path, 0700);
}

absl::StatusOr<std::string> DirectoryInCache(bool make) {
  const std::string cache = CacheDirectory();
  if (cache.empty()) return absl::NotFoundError("this user has no home directory here");
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  const std::string run = absl::StrCat(cache, "/dtrain/run-", host);
  std::string path = absl::StrCat(run, "/", BuildFolder());
  if (path.size() > kMostOfPath) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is too long a path for sockets below it"));
  }
  if (make) {
    (void)mkdir(cache.c_str(), 0700);
    (void)mkdir(absl::StrCat(cache, "/dtrain").c_str(), 0700);
  }
  if (IsOnFileServer(absl::StrCat(cache, "/dtrain"))) {
    return absl::FailedPreconditionError(absl::StrCat(cache, " is on a file server"));
  }
  for (const std::string& each : {run, path}) {
    if (absl::Status taken = Take(each, make); !taken.ok()) return taken;
  }
  return path;
}

absl::StatusOr<std::string> DirectoryInTmp(bool make) {
  auto own = os::OwnFolderIn(kTmp, make);
  if (!own.ok()) return own.status();
  if (make && !own->remark.empty()) log::Warn(own->remark);
  std::string path = absl::StrCat(own->path, "/", BuildFolder());
  if (absl::Status taken = Take(path, make); !taken.ok()) return taken;
  return path;
}

absl::StatusOr<os::UniqueFd> Dial(const std::string& socket_path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(name.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket path ", socket_path, " is too long"));
  }
  std::memcpy(name.sun_path, socket_path.data(), socket_path.size());
  os::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    return PosixError(errno, absl::StrCat("connect to ", Escape(socket_path)));
  }
  return fd;
}

// One that is about to end takes no connection any more, though it could be made.
absl::Status AwaitFirstByte(int fd) {
  pollfd ready{fd, POLLIN, 0};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(kAnswerLimit).count();
  int n;
  do {
    n = poll(&ready, 1, static_cast<int>(ms));
  } while (n < 0 && errno == EINTR);
  if (n == 0) {
    return absl::DeadlineExceededError(
        "this user's private dtrain-agent on this machine does not answer: it is stopped, or "
        "hangs");
  }
  char byte;
  if (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1) return absl::OkStatus();
  return absl::UnavailableError("it has ended");
}

// In a session of its own, so that the end of ours is nothing to it. It has the umask that its
// workers will have, and nothing else of ours.
absl::StatusOr<os::Child> StartKept(const std::string& directory) {
  const std::string log = absl::StrCat(directory, "/agent.log");
  os::UniqueFd out(
      open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  struct stat info {};
  if (!out || fstat(out.get(), &info) != 0) return PosixError(errno, absl::StrCat("open ", log));
  if (info.st_size > kMostOfLog) (void)ftruncate(out.get(), 0);
  char program[4096] = "";
  if (readlink("/proc/self/exe", program, sizeof(program) - 1) < 0) {
    return PosixError(errno, "look for this program");
  }
  os::SpawnSpec spec;
  spec.argv = {program, "keep"};
  spec.env = os::OwnEnvironment();
  spec.working_directory = "/";
  spec.stdout_fd = out.get();
  spec.stderr_fd = out.get();
  spec.new_session = true;
  return os::Spawn(spec);
}

absl::StatusOr<std::string> FindKeepDirectory(bool make) {
  auto cached = DirectoryInCache(make);
  if (cached.ok()) return cached;
  auto in_tmp = DirectoryInTmp(make);
  if (in_tmp.ok()) return in_tmp;
  return absl::FailedPreconditionError(
      absl::StrCat("a private dtrain-agent has no folder to run in: ", cached.status().message(),
                   "; ", in_tmp.status().message(), ": make one of the two usable"));
}

}  // namespace

absl::StatusOr<std::string> KeepDirectory() { return FindKeepDirectory(/*make=*/true); }

bool HasKeptJobs() {
  auto directory = FindKeepDirectory(/*make=*/false);
  if (!directory.ok()) return false;
  const std::string jobs = absl::StrCat(*directory, "/jobs");
  std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir(jobs.c_str()), closedir);
  if (listing == nullptr) return false;
  while (const dirent* entry = readdir(listing.get())) {
    if (entry->d_name[0] != '.') return true;
  }
  return false;
}

// Bridges that come at once may each start one: its lock lets one stay, and all find that.
absl::StatusOr<os::UniqueFd> ConnectToKept(bool start) {
  auto directory = FindKeepDirectory(/*make=*/start);
  if (!directory.ok()) return directory.status();
  const std::string socket_path = absl::StrCat(*directory, "/agent.sock");
  std::optional<os::Child> child;
  absl::Status last;
  for (const TimePoint end = Clock::now() + kStartLimit; Clock::now() < end;) {
    auto stream = Dial(socket_path);
    last = stream.ok() ? AwaitFirstByte(stream->get()) : stream.status();
    if (last.ok() || absl::IsDeadlineExceeded(last)) {
      if (!last.ok()) return last;
      return stream;
    }
    if (!start) return absl::NotFoundError(last.message());
    if (child) {
      const auto ended = os::TryReap(child->pidfd.get());
      if (!ended.ok() || ended->has_value()) child.reset();
    }
    if (!child) {
      auto started = StartKept(*directory);
      if (!started.ok()) return started.status();
      child = *std::move(started);
    }
    (void)poll(nullptr, 0, kDialPauseMs);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("a private dtrain-agent could not be started on this machine (", last.message(),
                   "); see ", *directory, "/agent.log"));
}

}  // namespace dtrain::agent
