// SPDX-License-Identifier: Apache-2.0
#include "common/os/fork_server.h"

#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/base/posix_error.h"
#include "common/os/pidfd.h"
#include "common/os/spawn_child.h"

namespace dtrain::os {
namespace {

// A request: this, then the groups, then the environment, each entry with its NUL; with the socket
// and the cgroup, if there is one, as descriptors. Its answer: a ChildAnswer, from the new process
// or, where there is none, from the server. Both ends are of the same build.
struct Request {
  bool in_cgroup = false;
  bool as_user = false;
  uid_t uid = 0;
  gid_t gid = 0;
  uint32_t groups = 0;
};

constexpr size_t kMaxRequest = 64 << 10;  // below any socket's buffer
constexpr int kMostFds = 2;
// For a server that was stopped, or a machine that stands still.
constexpr int kAnswerMs = 2000;

struct Received {
  std::string bytes;
  std::vector<UniqueFd> fds;
};

bool SendRequest(int socket, const std::string& bytes, const std::vector<int>& fds) {
  iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

// Empty: nobody is there any more.
Received Receive(int socket) {
  Received out;
  out.bytes.resize(kMaxRequest);
  iovec iov{out.bytes.data(), out.bytes.size()};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t n;
  do {
    n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  out.bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
  for (cmsghdr* h = CMSG_FIRSTHDR(&message); n > 0 && h != nullptr; h = CMSG_NXTHDR(&message, h)) {
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + sizeof(int) <= h->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(h) + at, sizeof(fd));
      out.fds.emplace_back(fd);
    }
  }
  return out;
}

// As fork(), but a child of our parent, and in the cgroup from its first moment on. -1 with errno.
int ForkForParent(int cgroup_fd) {
#if defined(DTRAIN_TSAN)
  (void)cgroup_fd;  // it has a thread of its own, and follows none but fork() itself
  errno = ENOSYS;
  return -1;
#else
  // Where glibc keeps the number of this thread, which is another one in the child.
  int* number = nullptr;
  if (prctl(PR_GET_TID_ADDRESS, &number) != 0) return -1;
  clone_args args = {};
  args.flags = CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
  args.child_tid = reinterpret_cast<uint64_t>(number);
  if (cgroup_fd >= 0) {
    args.flags |= CLONE_INTO_CGROUP;
    args.cgroup = static_cast<uint64_t>(cgroup_fd);
  }
  return static_cast<int>(syscall(SYS_clone3, &args, sizeof(args)));
#endif
}

// In the child: all that Spawn's children are, but for the program.
void Become(const Request& request, const std::vector<gid_t>& groups, absl::string_view environment,
            int socket) {
  Account user;
  user.uid = request.uid;
  user.gid = request.gid;
  int fds[] = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, socket, kForkedSocket};
  constexpr int kAnswer = kForkedSocket + 1;
  constexpr int kTargets[] = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, kForkedSocket, kAnswer};
  ChildPlan plan = {};
  plan.cgroup_fd = -1;             // it is there
  plan.answer_fd = kForkedSocket;  // until it is moved to kAnswer
  plan.fds = fds;
  plan.targets = kTargets;
  plan.fd_count = std::size(fds);
  if (request.as_user) {
    plan.directory = "/";
    plan.user = &user;
    plan.groups = groups.data();
    plan.group_count = groups.size();
    clearenv();
    for (absl::string_view entry : absl::StrSplit(environment, '\0', absl::SkipEmpty())) {
      const size_t equals = entry.find('=');
      if (equals == absl::string_view::npos) continue;
      setenv(std::string(entry.substr(0, equals)).c_str(),
             std::string(entry.substr(equals + 1)).c_str(), 1);
    }
  }
  PrepareChild(&plan);
  // As after an exec: its user may look at it, and has it dump core.
  if (request.as_user) prctl(PR_SET_DUMPABLE, 1);
  const ChildAnswer ready{SpawnStage::kNone, 0, getpid()};
  // Who asked is gone, and so is what this process is for.
  if (send(kAnswer, &ready, sizeof(ready), MSG_NOSIGNAL) != sizeof(ready)) _exit(1);
  close(kAnswer);
}

// True in the child.
bool ServeOne(Received received) {
  Request request;
  std::memcpy(&request, received.bytes.data(), sizeof(request));
  absl::string_view rest = absl::string_view(received.bytes).substr(sizeof(request));
  std::vector<gid_t> groups;
  for (; groups.size() < request.groups; rest.remove_prefix(sizeof(gid_t))) {
    std::memcpy(&groups.emplace_back(), rest.data(), sizeof(gid_t));
  }
  int pid = -1;
  errno = EMFILE;  // where descriptors were lost on the way
  if (received.fds.size() == size_t{1} + size_t{request.in_cgroup}) {
    pid = ForkForParent(request.in_cgroup ? received.fds[1].get() : -1);
  }
  if (pid == 0) {
    Become(request, groups, rest, received.fds[0].get());
    for (UniqueFd& fd : received.fds) (void)fd.Release();  // closed with all others
    return true;
  }
  if (pid < 0) {
    const ChildAnswer none{SpawnStage::kFork, errno, 0};
    // If nobody is there, the next Receive tells.
    (void)send(kForkedSocket, &none, sizeof(none), MSG_NOSIGNAL);
  }
  return false;
}

}  // namespace

ForkServer::ForkServer(std::vector<std::string> argv, std::vector<std::string> env)
    : argv_(std::move(argv)), env_(std::move(env)) {}

ForkServer::~ForkServer() { End(); }

absl::Status ForkServer::Start() {
  if (socket_) return absl::OkStatus();
  int ends[2];
  // Messages keep their borders, and those of two writers do not mix.
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return PosixError(errno, "make a pair of sockets");
  }
  UniqueFd ours(ends[0]), theirs(ends[1]);
  SpawnSpec spec;
  spec.argv = argv_;
  spec.env = env_;
  spec.stderr_fd = STDERR_FILENO;
  spec.extra_fds = {{theirs.get(), kForkedSocket}};
  spec.parent_death_signal = SIGKILL;  // else one that was stopped would stay
  auto server = Spawn(spec);
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  socket_ = std::move(ours);
  return absl::OkStatus();
}

absl::StatusOr<Child> ForkServer::Fork(const ForkSpec& spec) {
  if (absl::Status started = Start(); !started.ok()) {
    return absl::UnavailableError(started.message());
  }
  Request request;
  request.in_cgroup = spec.cgroup_fd >= 0;
  std::string bytes(sizeof(request), '\0');
  if (spec.user != nullptr) {
    request.as_user = true;
    request.uid = spec.user->uid;
    request.gid = spec.user->gid;
    request.groups = static_cast<uint32_t>(spec.user->groups.size());
    bytes.append(reinterpret_cast<const char*>(spec.user->groups.data()),
                 spec.user->groups.size() * sizeof(gid_t));
    for (const std::string& entry : spec.env) bytes.append(entry.c_str(), entry.size() + 1);
  }
  std::memcpy(bytes.data(), &request, sizeof(request));
  if (bytes.size() > kMaxRequest) {
    return absl::UnavailableError("a fork server does not take that many groups and variables");
  }
  std::vector<int> fds = {spec.socket_fd};
  if (spec.cgroup_fd >= 0) fds.push_back(spec.cgroup_fd);
  if (!SendRequest(socket_.get(), bytes, fds)) {
    const absl::Status why = PosixError(errno, "ask the fork server");
    End();
    return absl::UnavailableError(why.message());
  }
  return Answered();
}

absl::StatusOr<Child> ForkServer::Answered() {
  ChildAnswer answer;
  pollfd heard{socket_.get(), POLLIN, 0};
  int ready;
  do {
    ready = poll(&heard, 1, kAnswerMs);
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) (void)SendSignal(server_.pidfd.get(), SIGKILL);  // it forks no more
  const ssize_t n = recv(socket_.get(), &answer, sizeof(answer), MSG_DONTWAIT);
  if (n != sizeof(answer)) {
    End();
    return absl::UnavailableError(n == 0 ? "the fork server is gone"
                                         : "the fork server does not answer");
  }
  if (answer.failed_stage == SpawnStage::kFork) {
    return absl::UnavailableError(
        PosixError(answer.failed_errno, "fork a process of the fork server").message());
  }
  // A child of ours, and nobody has reaped it: its number is its own.
  auto pidfd = OpenPidfd(answer.pid);
  if (!pidfd.ok()) {
    // For want of descriptors: nobody could end or reap it later.
    (void)kill(answer.pid, SIGKILL);
    (void)waitpid(answer.pid, nullptr, 0);
    return pidfd.status();
  }
  Child child{answer.pid, *std::move(pidfd)};
  if (answer.failed_stage == SpawnStage::kNone) return child;
  (void)WaitAndReap(child.pidfd.get());
  return Explain({answer.failed_stage, answer.failed_errno, ""}, argv_[0]);
}

void ForkServer::End() {
  socket_.Reset();
  if (!server_.pidfd) return;
  (void)SendSignal(server_.pidfd.get(), SIGKILL);
  (void)WaitAndReap(server_.pidfd.get());
  server_ = {};
}

bool ServeForks() {
  for (;;) {
    Received received = Receive(kForkedSocket);
    if (received.bytes.empty()) return false;
    if (ServeOne(std::move(received))) return true;
  }
}

}  // namespace dtrain::os
