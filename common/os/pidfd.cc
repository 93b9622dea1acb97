// SPDX-License-Identifier: Apache-2.0
#include "common/os/pidfd.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/os/pidfd_stand_in.h"

namespace dtrain::os {
namespace {

absl::StatusOr<std::optional<ExitStatus>> Wait(int pidfd, int options) {
  siginfo_t info{};
  const bool stand_in = !HasPidfds();
  const int named = stand_in ? ChildOfStandIn(pidfd) : pidfd;
  int rc;
  do {
    rc = waitid(stand_in ? P_PID : kWaitPidfd, static_cast<id_t>(named), &info, WEXITED | options);
  } while (rc != 0 && errno == EINTR);
  if (rc != 0) return PosixError(errno, "wait for a child process");
  if (info.si_pid == 0) return std::nullopt;
  if (stand_in) ForgetStandIn(pidfd);
  ExitStatus status;
  if (info.si_code == CLD_EXITED) {
    status.code = info.si_status;
  } else {
    status.signal = info.si_status;
    status.core_dumped = info.si_code == CLD_DUMPED;
  }
  return status;
}

}  // namespace

absl::StatusOr<UniqueFd> OpenPidfd(pid_t pid) {
  if (!HasPidfds()) return StandInForProcess(pid);
  long fd = syscall(SYS_pidfd_open, pid, 0);  // close-on-exec always
  if (fd < 0)
    return PosixError(errno == ESRCH ? ENOENT : errno, absl::StrCat("open process ", pid));
  return UniqueFd(static_cast<int>(fd));
}

absl::Status SendSignal(int pidfd, int signal) {
  if (!HasPidfds()) return SignalByStandIn(pidfd, signal);
  if (syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0) return absl::OkStatus();
  if (errno == ESRCH) return absl::NotFoundError("the process has ended");
  return PosixError(errno, absl::StrCat("send signal ", signal));
}

absl::StatusOr<std::optional<ExitStatus>> TryReap(int pidfd) { return Wait(pidfd, WNOHANG); }

absl::StatusOr<ExitStatus> WaitAndReap(int pidfd) {
  auto status = Wait(pidfd, 0);
  if (!status.ok()) return status.status();
  return **status;
}

pid_t EndedChild() {
  siginfo_t info{};
  int rc;
  do {
    rc = waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT);
  } while (rc != 0 && errno == EINTR);
  return rc == 0 ? info.si_pid : 0;
}

bool HasChildren() {
  siginfo_t info{};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

void ReapQuietly(pid_t pid) {
  siginfo_t info{};
  while (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG) != 0 && errno == EINTR) {
  }
}

}  // namespace dtrain::os
