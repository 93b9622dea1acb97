// SPDX-License-Identifier: Apache-2.0
#include "common/os/pidfd_stand_in.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/posix_error.h"
#include "common/os/fd.h"

namespace dtrain::os {
namespace {

// How often a process that is not a child is looked at.
constexpr long kLookNanos = 100'000'000;

struct Watched {
  ino_t pipe = 0;  // names the stand-in: a descriptor's number may be another file's by now
  pid_t pid = 0;
  bool child = true;
  UniqueFd writer;   // none: it has ended
  UniqueFd process;  // /proc/PID of a process that is not a child, until it has ended
};

// Changed with all signals blocked and `busy` held, so that the handler, which takes it too, never
// waits for the thread that it runs on.
struct Table {
  std::atomic_flag busy = ATOMIC_FLAG_INIT;
  std::vector<Watched> watched;
  struct sigaction before = {};  // the handler that ours calls
  std::optional<timer_t> timer;
  pid_t owner =
      0;  // a process that was forked has the table, but neither these children nor the timer
};

Table& TheTable() {
  static auto& table = *new Table;  // signals may come at any time, also when the process exits
  return table;
}

class Held {
 public:
  explicit Held(Table& table) : table_(table) {
    while (table_.busy.test_and_set(std::memory_order_acquire)) sched_yield();
  }
  ~Held() { table_.busy.clear(std::memory_order_release); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  Table& table_;
};

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// 0: it has ended and has not been reaped; ECHILD: not a child of ours, or reaped; EAGAIN: it runs.
int StateOfChild(pid_t pid) {
  siginfo_t info;
  info.si_pid = 0;
  int rc;
  do {
    rc = waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
  } while (rc != 0 && errno == EINTR);
  if (rc != 0) return errno;
  return info.si_pid == 0 ? EAGAIN : 0;
}

// Whether the process of a /proc/PID has ended; reaped or not, as with a pidfd.
bool HasEnded(int process) {
  const UniqueFd stat(openat(process, "stat", O_RDONLY | O_CLOEXEC));
  if (!stat) return errno == ENOENT || errno == ESRCH;
  char text[256];
  const ssize_t size = read(stat.get(), text, sizeof(text));
  if (size < 0) return errno == ESRCH;
  // The second field is the name in parentheses, at most 64 bytes; the state follows.
  const void* name_end = memrchr(text, ')', static_cast<size_t>(size));
  if (name_end == nullptr) return false;
  const char* state = static_cast<const char*>(name_end) + 2;
  return state < text + size && (*state == 'Z' || *state == 'X');
}

bool HasReader(int writer) {
  pollfd state = {writer, 0, 0};
  return poll(&state, 1, 0) == 0 || (state.revents & POLLERR) == 0;
}

// In a signal handler, too.
void Look(Watched& watched) {
  if (!watched.writer) return;
  const bool ended =
      watched.child ? StateOfChild(watched.pid) != EAGAIN : HasEnded(watched.process.get());
  if (ended || (!watched.child && !HasReader(watched.writer.get()))) {
    watched.writer.Reset();
    watched.process.Reset();
  }
}

void SetTimer(Table& table) {
  const bool needed = std::any_of(table.watched.begin(), table.watched.end(),
                                  [](const Watched& one) { return one.process.get() >= 0; });
  if (!table.timer) return;
  itimerspec when = {};
  if (needed) when.it_value.tv_nsec = kLookNanos;
  timer_settime(*table.timer, 0, &when, nullptr);
}

void OnChildSignal(int number, siginfo_t* info, void* context) {
  const int saved = errno;
  struct sigaction before;
  {
    Table& table = TheTable();
    const Held held(table);
    if (table.owner == getpid()) {
      for (Watched& one : table.watched) Look(one);
      SetTimer(table);
    }
    before = table.before;
  }
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  }
  errno = saved;
}

// Again for each process: a library may have put a handler of its own in the place of ours.
void Catch(Table& table) {
  struct sigaction now = {};
  sigaction(SIGCHLD, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == OnChildSignal) return;
  table.before = now;
  struct sigaction ours = {};
  ours.sa_sigaction = OnChildSignal;
  ours.sa_mask = now.sa_mask;
  ours.sa_flags = SA_SIGINFO | SA_RESTART | (now.sa_flags & (SA_NOCLDSTOP | SA_ONSTACK));
  DTRAIN_CHECK(sigaction(SIGCHLD, &ours, nullptr) == 0);
}

ino_t InodeOf(int fd) {
  struct stat info = {};
  return fd >= 0 && fstat(fd, &info) == 0 && S_ISFIFO(info.st_mode) ? info.st_ino : 0;
}

void Watch(Watched watched) {
  Table& table = TheTable();
  const SignalsBlocked blocked;
  const Held held(table);
  Catch(table);
  if (table.owner != getpid()) {
    for (Watched& one : table.watched) {  // their numbers may be other descriptors' by now
      one.writer.Release();
      one.process.Release();
    }
    table.watched.clear();
    table.timer.reset();
    table.owner = getpid();
  }
  // Those that nobody holds any more.
  std::erase_if(table.watched, [](const Watched& one) {
    if (one.writer) return !HasReader(one.writer.get());
    return !one.child || StateOfChild(one.pid) == ECHILD;
  });
  table.watched.push_back(std::move(watched));
  Look(table.watched.back());  // it may have ended before we caught the signal
  if (table.watched.back().process && !table.timer) {
    sigevent event = {};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGCHLD;
    timer_t timer;
    DTRAIN_CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    table.timer = timer;
  }
  SetTimer(table);
}

// Calls `use` for what a stand-in is of. False: nothing is known of it.
template <typename F>
bool With(int fd, F use) {
  const ino_t pipe = InodeOf(fd);
  Table& table = TheTable();
  const SignalsBlocked blocked;
  const Held held(table);
  const auto found = std::find_if(table.watched.begin(), table.watched.end(),
                                  [pipe](const Watched& one) { return one.pipe == pipe; });
  if (pipe == 0 || table.owner != getpid() || found == table.watched.end()) return false;
  use(table, found);
  return true;
}

}  // namespace

bool HasPidfds() {
  static const bool has = [] {
    siginfo_t info;
    // EBADF: the kernel knows the word and would take a pidfd.
    if (waitid(kWaitPidfd, INT_MAX, &info, WEXITED | WNOHANG) == 0 || errno != EBADF) return false;
    const UniqueFd self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    return self && syscall(SYS_pidfd_send_signal, self.get(), 0, nullptr, 0) == 0;
  }();
  return has;
}

UniqueFd StandInForChild(pid_t pid, std::pair<UniqueFd, UniqueFd> pipe) {
  const ino_t inode = InodeOf(pipe.first.get());
  Watch({inode, pid, /*child=*/true, std::move(pipe.second), UniqueFd()});
  return std::move(pipe.first);
}

absl::StatusOr<UniqueFd> StandInForProcess(pid_t pid) {
  auto pipe = Pipe();
  if (!pipe.ok()) return pipe.status();
  if (StateOfChild(pid) != ECHILD) return StandInForChild(pid, *std::move(pipe));
  const std::string path = absl::StrCat("/proc/", pid);
  UniqueFd process(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!process) return PosixError(errno, absl::StrCat("open process ", pid));
  const ino_t inode = InodeOf(pipe->first.get());
  Watch({inode, pid, /*child=*/false, std::move(pipe->second), std::move(process)});
  return std::move(pipe->first);
}

absl::Status SignalByStandIn(int fd, int signal) {
  int error = ESRCH;
  With(fd, [&](Table&, auto watched) {
    Look(*watched);
    // A child that is not reaped keeps its number; another process was there a moment ago.
    const bool there = watched->child ? StateOfChild(watched->pid) != ECHILD : !!watched->process;
    if (there) error = kill(watched->pid, signal) == 0 ? 0 : errno;
  });
  if (error == 0) return absl::OkStatus();
  if (error == ESRCH) return absl::NotFoundError("the process has ended");
  return PosixError(error, absl::StrCat("send signal ", signal));
}

pid_t ChildOfStandIn(int fd) {
  pid_t pid = 0;
  With(fd, [&](Table&, auto watched) {
    if (watched->child) pid = watched->pid;
  });
  return pid;
}

void ForgetStandIn(int fd) {
  With(fd, [](Table& table, auto watched) { table.watched.erase(watched); });
}

}  // namespace dtrain::os
