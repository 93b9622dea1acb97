// SPDX-License-Identifier: Apache-2.0
#include "spawner/starter.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <vector>

namespace dtrain::spawner {
namespace {

constexpr int kReport = 5;  // behind the shepherd's own

int report_fd;

[[noreturn]] void Fail(Stage stage) {
  const StartReport report{stage, errno};
  (void)!write(report_fd, &report, sizeof(report));
  _exit(127);
}

void Need(bool done, Stage stage) {
  if (!done) Fail(stage);
}

// First above all targets, so that none is overwritten before it is used.
void PlaceDescriptors(const Start& start) {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  int from[] = {null, null, start.words, start.link, start.lease, report_fd};
  for (int& fd : from) Need((fd = fcntl(fd, F_DUPFD_CLOEXEC, kReport + 1)) >= 0, Stage::kStart);
  report_fd = from[kReport];
  for (int to = 0; to <= kReport; ++to) {
    Need(dup3(from[to], to, to == kReport ? O_CLOEXEC : 0) == to, Stage::kStart);
  }
  report_fd = kReport;
  Need(syscall(SYS_close_range, kReport + 1, ~0U, 0) == 0, Stage::kStart);
}

void ResetProcess(const Start& start) {
  for (int number = 1; number < NSIG; ++number) {
    if (number != SIGKILL && number != SIGSTOP) signal(number, SIG_DFL);  // EINVAL: glibc's own
  }
  umask(022);
  Need(setsid() >= 0, Stage::kStart);
  Need(setrlimit(RLIMIT_NOFILE, &start.files) == 0, Stage::kStart);
  const int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  Need(score >= 0 && write(score, "0", 1) == 1 && close(score) == 0, Stage::kStart);
}

// Until the exec this must be nobody's to trace, nor its descriptors to take: not dumpable before
// and after the change, and in between (fs.suid_dumpable may make it so) with capabilities that its
// user lacks.
void BecomeUser(const Account& account) {
  const bool root = account.uid == 0;
  Need(prctl(PR_SET_DUMPABLE, 0) == 0 && (root || prctl(PR_SET_KEEPCAPS, 1) == 0), Stage::kBecome);
  Need(setgroups(account.group_count, account.groups) == 0, Stage::kBecome);
  Need(setresgid(account.gid, account.gid, account.gid) == 0, Stage::kBecome);
  Need(setresuid(account.uid, account.uid, account.uid) == 0, Stage::kBecome);
  Need(prctl(PR_SET_DUMPABLE, 0) == 0, Stage::kBecome);
  if (!root) {
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    const __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
    Need(syscall(SYS_capset, &header, none) == 0 && prctl(PR_SET_KEEPCAPS, 0) == 0, Stage::kBecome);
    const bool regained = setresuid(0, 0, 0) == 0 || setuid(0) == 0 || setgroups(0, nullptr) == 0;
    errno = EPERM;
    Need(!regained, Stage::kBecome);
  }
  // A kernel without keys, or a filter, which holds for the user too.
  Need(syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr) >= 0 || errno == ENOSYS ||
           errno == EPERM,
       Stage::kBecome);
  Need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, Stage::kBecome);
}

}  // namespace

bool StartShepherd(const Start& start, Fd* pidfd, Fd* report) {
  const Account& account = start.account;
  std::vector<std::string> texts = {
      std::string("HOME=") + account.home, std::string("USER=") + account.name,
      std::string("LOGNAME=") + account.name, std::string("SHELL=") + account.shell,
      account.uid == 0 ? "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
                       : "PATH=/usr/local/bin:/usr/bin:/bin"};
  if (const char* lang = getenv("LANG")) texts.push_back(std::string("LANG=") + lang);
  std::vector<const char*> environment;
  for (const std::string& text : texts) environment.push_back(text.c_str());
  environment.push_back(nullptr);
  const char* const words[] = {start.program.c_str(), "shepherd", nullptr};
  auto [reader, writer] = Pipe(O_NONBLOCK);
  if (!reader) return false;
  const int made = Fork(start.cgroup, pidfd);
  if (made == 0) {
    report_fd = writer.get();
    PlaceDescriptors(start);
    ResetProcess(start);
    BecomeUser(account);
    Need(chdir("/") == 0, Stage::kStart);
    execve(words[0], const_cast<char**>(words), const_cast<char**>(environment.data()));
    Fail(Stage::kExec);
  }
  *report = std::move(reader);
  return made > 0;
}

}  // namespace dtrain::spawner
