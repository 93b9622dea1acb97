// SPDX-License-Identifier: Apache-2.0
// Tells each that connects to fd 3 what it was started with, as `name value` lines and an empty
// one, and then does what it is told, a line at a time:
//   exit N      ends
//   daemons N   forks N processes, in sessions and cgroups of their own, which no signal but KILL
//   ends cgroups N   makes as many cgroups as it may below `workers`, N at most leave PATH  wants
//   to move to another cgroup
// and says how that went.
#include <fcntl.h>
#include <linux/keyctl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

extern char** environ;

namespace {

std::string Contents(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Of the line that begins so.
std::string Field(const std::string& text, const std::string& word) {
  const size_t at = text.find("\n" + word);
  if (at == text.npos) return "";
  const size_t begin = at + 1 + word.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

std::string Report() {
  std::ostringstream out;
  uid_t uid[3];
  gid_t gid[3];
  getresuid(&uid[0], &uid[1], &uid[2]);
  getresgid(&gid[0], &gid[1], &gid[2]);
  out << "uid " << uid[0] << ' ' << uid[1] << ' ' << uid[2] << "\n";
  out << "gid " << gid[0] << ' ' << gid[1] << ' ' << gid[2] << "\n";
  gid_t groups[64];
  const int count = getgroups(64, groups);
  out << "groups";
  for (int i = 0; i < count; ++i) out << ' ' << groups[i];
  out << "\nfds";
  for (int fd = 0; fd < 1024; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) out << ' ' << fd;
  }
  out << "\nregained " << (setresuid(0, 0, 0) == 0) << "\n";
  out << "session " << (getsid(0) == getpid()) << "\n";
  out << "dumpable " << prctl(PR_GET_DUMPABLE) << "\n";
  out << "no_new_privs " << prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) << "\n";
  out << "keyring " << syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0)
      << "\n";
  out << "oom_score_adj " << Contents("/proc/self/oom_score_adj");
  // A job that could set it again would outlive others when memory runs out.
  const int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  out << "spared " << (write(score, "-1", 2) == 2) << "\n";
  close(score);
  out << "cgroup " << Field("\n" + Contents("/proc/self/cgroup"), "0::") << "\n";
  const std::string status = Contents("/proc/self/status");
  out << "effective " << Field(status, "CapEff:") << "\n";
  out << "ignored " << Field(status, "SigIgn:") << "\n";
  const mode_t mask = umask(0);
  umask(mask);
  out << "umask " << std::oct << mask << std::dec << "\n";
  rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  out << "nofile " << files.rlim_cur << ' ' << files.rlim_max << "\n";
  out << "nonblocking " << ((fcntl(2, F_GETFL) & O_NONBLOCK) != 0) << "\n";
  out << "seals " << fcntl(4, F_GET_SEALS) << "\n";
  char lease[512];
  const ssize_t n = pread(4, lease, sizeof(lease), 0);
  out << std::string(lease, n > 0 ? static_cast<size_t>(n) : 0);
  char directory[256];
  out << "directory " << getcwd(directory, sizeof(directory)) << "\n";
  for (char** entry = environ; *entry != nullptr; ++entry) out << "env " << *entry << "\n";
  return out.str() + "\n";
}

std::string Workers() {
  std::string at = Field("\n" + Contents("/proc/self/cgroup"), "0::");
  at.resize(at.rfind('/'));
  for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    const std::string path = mount + at + "/workers";
    if (access(path.c_str(), F_OK) == 0) return path;
  }
  return "";
}

bool Move(const std::string& cgroup) {
  const int fd = open((cgroup + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = write(fd, "0", 1) == 1;
  close(fd);
  return done;
}

std::string Daemons(int count) {
  int ready[2];
  if (pipe(ready) != 0) return "no pipe";
  for (int i = 0; i < count; ++i) {
    if (const pid_t middle = fork(); middle != 0) {
      (void)waitpid(middle, nullptr, 0);
      continue;
    }
    setsid();
    for (int s = 1; s < NSIG; ++s) signal(s, SIG_IGN);
    const std::string own = Workers() + "/d" + std::to_string(i);
    const bool moved = mkdir(own.c_str(), 0755) == 0 && Move(own);
    if (fork() != 0) _exit(0);  // what is left is nobody's child
    (void)!write(ready[1], moved ? "y" : "n", 1);
    close(ready[1]);
    for (;;) pause();
  }
  close(ready[1]);
  std::string all;
  char word;
  while (static_cast<int>(all.size()) < count && read(ready[0], &word, 1) == 1) all += word;
  close(ready[0]);
  return all;
}

std::string Cgroups(int count) {
  std::string at = Workers();
  int made = 0;
  for (; made < count; ++made) {
    if (mkdir((at + "/c" + std::to_string(made)).c_str(), 0755) != 0) break;
    if (made % 100 < 8) at += "/c" + std::to_string(made);
  }
  return std::to_string(made);
}

void Serve(int connection) {
  const std::string report = Report();
  (void)!write(connection, report.data(), report.size());
  char line[256];
  for (ssize_t n; (n = read(connection, line, sizeof(line) - 1)) > 0;) {
    std::istringstream words(std::string(line, static_cast<size_t>(n)));
    std::string verb, argument;
    words >> verb >> argument;
    if (verb == "exit") _exit(atoi(argument.c_str()));
    std::string answer = verb == "daemons"   ? Daemons(atoi(argument.c_str()))
                         : verb == "cgroups" ? Cgroups(atoi(argument.c_str()))
                                             : std::to_string(Move(argument));
    answer += "\n";
    (void)!write(connection, answer.data(), answer.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || std::string(argv[1]) != "shepherd") return 2;
  signal(SIGPIPE, SIG_IGN);
  (void)!write(2, "a word\n", 7);
  for (;;) {
    const int connection = accept(3, nullptr, nullptr);
    if (connection < 0) return 1;
    Serve(connection);
    close(connection);
  }
}
