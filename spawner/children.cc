// SPDX-License-Identifier: Apache-2.0
#include "spawner/children.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace dtrain::spawner {

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

std::string Format(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

std::string Because(const std::string& what) {
  const int error = errno;
  std::string words = Format("%s: %s", what.c_str(), strerror(error));
  errno = error;
  return words;
}

void Log(const std::string& line) {
  pollfd out{STDERR_FILENO, POLLOUT, 0};
  if (poll(&out, 1, 0) != 1) return;
  const std::string text = "dtrain-spawner: " + line + "\n";
  (void)!write(STDERR_FILENO, text.data(), text.size());
}

std::pair<Fd, Fd> Pipe(int flags) {
  int ends[2];
  if (pipe2(ends, flags | O_CLOEXEC) != 0) return {};
  return {Fd(ends[0]), Fd(ends[1])};
}

int Fork(int cgroup, Fd* pidfd) {
  int made = -1;
  clone_args arguments = {};
  arguments.flags = CLONE_PIDFD | (cgroup >= 0 ? CLONE_INTO_CGROUP : 0);
  arguments.pidfd = reinterpret_cast<uintptr_t>(&made);
  arguments.exit_signal = SIGCHLD;
  arguments.cgroup = static_cast<uint64_t>(cgroup >= 0 ? cgroup : 0);
  const long result = syscall(SYS_clone3, &arguments, sizeof(arguments));
  if (result > 0) *pidfd = Fd(made);
  return result > 0 ? 1 : static_cast<int>(result);
}

bool CloseByExit(std::vector<Fd>* fds, std::vector<Fd>* children) {
  Fd pidfd;
  auto [reader, writer] = Pipe(0);
  const int made = reader ? Fork(-1, &pidfd) : -1;
  if (made < 0) return false;
  if (made == 0) {
    writer = Fd();
    char end;
    (void)!read(reader.get(), &end, 1);
    _exit(0);
  }
  fds->clear();  // before `writer`
  children->push_back(std::move(pidfd));
  return true;
}

void KillChild(const Fd& pidfd) {
  (void)syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
}

bool Reap(const Fd& pidfd, int* code, int* signal) {
  siginfo_t info = {};
  constexpr auto kByPidfd = static_cast<idtype_t>(3);  // P_PIDFD, which glibc has since 2.36
  if (waitid(kByPidfd, static_cast<id_t>(pidfd.get()), &info, WEXITED | WNOHANG) != 0)
    return errno == ECHILD;
  if (info.si_signo == 0) return false;
  *code = info.si_code == CLD_EXITED ? info.si_status : -1;
  *signal = info.si_code == CLD_EXITED ? 0 : info.si_status;
  return true;
}

}  // namespace dtrain::spawner
