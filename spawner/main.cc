// SPDX-License-Identifier: Apache-2.0
// dtrain-spawner: root's program that starts and kills users' jobs for an agent without privileges.
#include <fcntl.h>
#include <getopt.h>
#include <pwd.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "spawner/cgroups.h"
#include "spawner/limits.h"
#include "spawner/server.h"

namespace dtrain::spawner {
namespace {

constexpr char kConfig[] = "/etc/dtrain/spawner.conf";
constexpr char kHelp[] =
    "Usage: dtrain-spawner [--run-dir DIR] [--config FILE] [--agent-user NAME]\n"
    "                      [--shepherd PROGRAM] [--patience SECONDS] [--limit | --unlimit]\n"
    "Starts and kills the jobs of users for dtrain-agent. Needs root, cgroup v2 and Linux 5.14.\n"
    "  --patience  how long the agent may be silent beyond a job's lease and grace, and how\n"
    "              long a killed job may take until it is reported (60)\n"
    "  --limit     limit jobs, though that keeps systemd before 254 from starting this again\n"
    "  --unlimit   take the limits away: what ExecStopPost= does for it\n";

[[noreturn]] void Die(const std::string& why) {
  Log("cannot start: " + why);
  exit(1);
}

[[noreturn]] void Unlimit() {
  std::string path;
  bool leaf = false;
  const std::string why = FindCgroup(&path, &leaf);
  if (!why.empty()) Die(why);
  if (!StopLimiting(path + "/jobs")) Die(Because("take the limits of " + path + "/jobs away"));
  exit(0);
}

Options ParseFlags(int argc, char** argv) {
  static const option kFlags[] = {{"run-dir", 1, nullptr, 'r'},    {"config", 1, nullptr, 'c'},
                                  {"agent-user", 1, nullptr, 'a'}, {"shepherd", 1, nullptr, 's'},
                                  {"patience", 1, nullptr, 'p'},   {"help", 0, nullptr, 'h'},
                                  {"version", 0, nullptr, 'v'},    {"limit", 0, nullptr, 'l'},
                                  {"unlimit", 0, nullptr, 'u'},    {}};
  Options options;
  for (int flag; (flag = getopt_long(argc, argv, "", kFlags, nullptr)) != -1;) {
    if (flag == 'r') options.run_dir = optarg;
    if (flag == 'c') options.config = optarg;
    if (flag == 'a') options.agent_user = optarg;
    if (flag == 's') options.shepherd = optarg;
    if (flag == 'p') options.patience = std::chrono::seconds(atoi(optarg));
    if (flag == 'l') options.limit = true;
    if (flag == 'u') Unlimit();
    if (flag == 'h' || flag == 'v') {
      fputs(flag == 'h' ? kHelp : "dtrain-spawner " DTRAIN_VERSION "\n", stdout);
      exit(0);
    }
    if (flag == '?') exit(2);
  }
  if (optind != argc || options.patience <= Ms(0) || options.run_dir[0] != '/') {
    fputs(kHelp, stderr);
    exit(2);
  }
  return options;
}

void ReadPolicy(Options* options) {
  const std::string& path = options->config.empty() ? kConfig : options->config;
  if (options->config.empty() && access(path.c_str(), F_OK) != 0 && errno == ENOENT) return;
  std::string wrong;
  const std::string text = ReadRootsFile(path, &wrong);
  if (!wrong.empty()) Die(wrong);
  wrong = ParsePolicy(text, &options->policy);
  if (!wrong.empty()) Die(path + ": " + wrong);
}

void MakeFolder(const std::string& path, mode_t mode, gid_t group) {
  struct stat info {};
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) Die(Because("make " + path));
  if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != 0) {
    Die(path + " is not a folder of root's");
  }
  if (chown(path.c_str(), 0, group) != 0 || chmod(path.c_str(), mode) != 0)
    Die(Because("set the mode of " + path));
}

Fd Listen(const Options& options) {
  const std::string path = options.run_dir + "/agent.sock";
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (!Put(path, address.sun_path)) Die(path + " is too long for a socket");
  unlink(path.c_str());
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), 0600) != 0 ||
      chown(path.c_str(), options.agent_uid, options.agent_gid) != 0 || listen(fd.get(), 8) != 0) {
    Die(Because("listen on " + path));
  }
  return fd;
}

void NotifySystemd() {
  const char* const path = getenv("NOTIFY_SOCKET");
  if (path == nullptr) return;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  Put(path, address.sun_path);
  if (path[0] == '@') address.sun_path[0] = '\0';
  const Fd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + strlen(path));
  if (sendto(fd.get(), "READY=1", 7, MSG_NOSIGNAL, reinterpret_cast<sockaddr*>(&address), size) !=
      7) {
    Log(Because("tell systemd that it is ready"));
  }
}

int Main(int argc, char** argv) {
  Options options = ParseFlags(argc, argv);
  umask(022);
  signal(SIGPIPE, SIG_IGN);
  if (geteuid() != 0) Die("it needs root");
  if (prctl(PR_SET_DUMPABLE, 0) != 0) Die(Because("become undumpable"));
  ReadPolicy(&options);
  const passwd* const agent = getpwnam(options.agent_user.c_str());
  if (agent == nullptr) Die("there is no user " + Escape(options.agent_user));
  options.agent_uid = agent->pw_uid;
  options.agent_gid = agent->pw_gid;
  if (options.shepherd.empty()) {
    char own[kPathSize] = {};
    if (readlink("/proc/self/exe", own, sizeof(own) - 1) < 0) Die(Because("find this program"));
    options.shepherd = std::string(own, strrchr(own, '/')) + "/dtrain-shepherd";
  }
  if (getrlimit(RLIMIT_NOFILE, &options.files) != 0) Die(Because("read RLIMIT_NOFILE"));
  if (options.files.rlim_max < 4096) Die("RLIMIT_NOFILE must be at least 4096");
  rlimit files = {options.files.rlim_max, options.files.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &files) != 0) Die(Because("raise RLIMIT_NOFILE"));
  MakeFolder(options.run_dir, 0711, 0);
  MakeFolder(options.run_dir + "/jobs", 0710, options.agent_gid);
  const Fd lock(
      open((options.run_dir + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    Die(Because("another spawner has " + options.run_dir));
  bool leaf = false;
  std::string unit, why = FindCgroup(&unit, &leaf);
  if (why.empty()) why = PrepareCgroups(unit);
  if (!why.empty()) {
    Die(why +
        "; on a node without cgroup v2 and Linux 5.14 enable dtrain-agent-root instead of "
        "dtrain-agent");
  }
  options.jobs = unit + "/jobs";
  const std::string missing = leaf || options.limit ? LimitJobs(options.jobs)
                                                    : "neither --limit nor a cgroup named spawner";
  if (!missing.empty()) {
    const std::string words = "jobs' memory and processes are not limited: " + missing;
    options.policy.limits.required ? Die(words + ", and require-limits = yes") : Log(words);
  }
  if (options.jobs.size() > 256 || options.run_dir.size() > 256)
    Die("the path of the cgroup or --run-dir is too long");
  Fd listener = Listen(options);
  Log("serves uid " + std::to_string(options.agent_uid) + " on " + options.run_dir + ", cgroup " +
      options.jobs);
  static Server server(std::move(options), std::move(listener));
  server.Adopt();
  NotifySystemd();
  for (;;) server.Poll();
}

}  // namespace
}  // namespace dtrain::spawner

int main(int argc, char** argv) { return dtrain::spawner::Main(argc, argv); }
