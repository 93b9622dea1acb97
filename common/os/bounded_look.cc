// SPDX-License-Identifier: Apache-2.0
#include "common/os/bounded_look.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/os/fd.h"
#include "common/os/file_system.h"
#include "common/os/pidfd.h"
#include "common/os/unique_fd.h"

namespace dtrain::os {
namespace {

// For a process that was killed to be gone, unless it waits where nothing ends it.
constexpr Duration kDeath = std::chrono::milliseconds(200);

bool EndsWithin(int pidfd, Duration bound) {
  const TimePoint end = Clock::now() + bound;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() < 0) return false;
    pollfd ended{pidfd, POLLIN, 0};
    const int n = poll(&ended, 1, static_cast<int>(left.count()));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

// The process that looks. None: the caller's own look will show why.
UniqueFd StartLook(absl::FunctionRef<void()> look) {
  const pid_t child = fork();
  if (child == 0) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    // A signal may not end it. It must not seem to be us to anyone who waits for our end, or for
    // the end of our output.
    CloseRange(0, kEveryDescriptor);
    look();
    _exit(0);
  }
  if (child < 0) return UniqueFd();
  auto pidfd = OpenPidfd(child);
  return pidfd.ok() ? *std::move(pidfd) : UniqueFd();
}

// O_PATH, by what the kernel has cached alone: EAGAIN where it would have to ask a file system, as
// before each use of a name on NFS. ENOENT: it knows that there is nothing.
UniqueFd OpenCached(const std::string& path) {
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_CACHED;
  return UniqueFd(
      static_cast<int>(syscall(SYS_openat2, AT_FDCWD, path.c_str(), &how, sizeof(how))));
}

// Network file systems, and those that a program serves, have no device of their own; nor have a
// few local ones. Not statfs, which asks the server.
bool IsLocal(int fd, bool overlay_counts) {
  struct statx about {};
  if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &about) != 0) return false;
  if (about.stx_dev_major != 0) return true;
  constexpr absl::string_view kWithoutDevice[] = {"bcachefs", "btrfs", "ramfs", "tmpfs", "zfs"};
  const auto type = FileSystemOf(fd);
  if (!type.ok()) return false;
  return (overlay_counts && *type == "overlay") ||
         std::find(std::begin(kWithoutDevice), std::end(kWithoutDevice), *type) !=
             std::end(kWithoutDevice);
}

}  // namespace

bool ReturnsWithin(Duration bound, absl::FunctionRef<void()> look) {
  const UniqueFd child = StartLook(look);
  if (!child) return true;
  const bool returned = EndsWithin(child.get(), bound);
  if (!returned) {
    (void)SendSignal(child.get(), SIGKILL);
    (void)EndsWithin(child.get(), kDeath);
  }
  (void)TryReap(child.get());
  return returned;
}

void AwaitReturn(Duration bound, absl::FunctionRef<void()> look, absl::FunctionRef<void()> late) {
  const UniqueFd child = StartLook(look);
  if (!child) return;
  if (!EndsWithin(child.get(), bound)) late();
  (void)WaitAndReap(child.get());
}

bool IsAtHand(const std::string& path) {
  const UniqueFd fd = OpenCached(path);
  return fd && IsLocal(fd.get(), /*overlay_counts=*/false);
}

bool AnswersAtOnce(const std::string& path) {
  std::string at = path;
  for (;;) {
    const UniqueFd fd = OpenCached(at);
    // An overlay asks its layers before each use of a name that lies on a file server.
    if (fd) return IsLocal(fd.get(), /*overlay_counts=*/true);
    const size_t slash = at.rfind('/');
    if (errno != ENOENT || slash == std::string::npos || at.size() == 1) return false;
    at.resize(std::max<size_t>(slash, 1));
  }
}

}  // namespace dtrain::os
