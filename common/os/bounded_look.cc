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

#include <cerrno>
#include <chrono>
#include <utility>

#include "common/os/fd.h"
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
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_CACHED;
  UniqueFd fd(static_cast<int>(syscall(SYS_openat2, AT_FDCWD, path.c_str(), &how, sizeof(how))));
  struct statx about {};
  // Network file systems, and those that a program serves, have no device of their own.
  return fd && statx(fd.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &about) == 0 &&
         about.stx_dev_major != 0;
}

}  // namespace dtrain::os
