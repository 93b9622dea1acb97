// SPDX-License-Identifier: Apache-2.0
// For fork_server_test: a program whose forked processes do what their socket says, a word at a
// time, and tell there what they are.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>

#include "common/os/fork_server.h"

namespace {

std::string Report() {
  std::ostringstream out;
  out << "pid " << getpid() << " thread " << gettid() << " parent " << getppid() << " group "
      << getpgid(0) << "\n";
  out << "uid " << getuid() << " " << geteuid() << " gid " << getgid() << " " << getegid()
      << " groups";
  gid_t groups[64];
  const int count = getgroups(64, groups);
  for (int i = 0; i < count; ++i) out << " " << groups[i];
  out << "\ngains rights " << !prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) << " dumps core "
      << prctl(PR_GET_DUMPABLE) << "\n";
  out << "in " << std::filesystem::current_path().native() << "\n";
  for (char** entry = environ; *entry != nullptr; ++entry) out << "env " << *entry << "\n";
  for (int fd = 0; fd < 100; ++fd) {
    std::error_code none;
    const auto target =
        std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), none).native();
    if (!none) out << "fd " << fd << " " << target.substr(0, target.find(':')) << "\n";
  }
  return out.str();
}

}  // namespace

int main() {
  if (!dtrain::os::ServeForks()) return 0;
  char word[64];
  ssize_t n;
  while ((n = read(dtrain::os::kForkedSocket, word, sizeof(word))) > 0) {
    const std::string told(word, static_cast<size_t>(n));
    if (told == "exit") return 7;
    if (told == "raise") (void)raise(SIGUSR1);
    const std::string report = Report();
    if (send(dtrain::os::kForkedSocket, report.data(), report.size(), MSG_NOSIGNAL) < 0) return 1;
  }
  return 0;
}
