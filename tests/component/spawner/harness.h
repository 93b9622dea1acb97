// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/os/cgroup.h"
#include "common/os/pidfd.h"
#include "common/os/unique_fd.h"
#include "spawner/protocol.h"
#include "tests/support/paths.h"

namespace dtrain::spawner {

using os::UniqueFd;

inline constexpr int kPatienceMs = 20000;

inline std::string FileText(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// As an effective user while it lives: who connects then has connected as that one.
class As {
 public:
  explicit As(uid_t uid) {
    EXPECT_EQ(setegid(uid), 0);
    EXPECT_EQ(seteuid(uid), 0);
  }
  ~As() {
    EXPECT_EQ(seteuid(0), 0);
    EXPECT_EQ(setegid(0), 0);
  }
};

inline bool ConnectTo(int fd, const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

inline UniqueFd ListenAt(const std::string& path, int type) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  unlink(path.c_str());
  UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(chmod(path.c_str(), 0666), 0);
  EXPECT_EQ(type == SOCK_DGRAM ? 0 : listen(fd.get(), 64), 0);
  return fd;
}

inline bool IsReadable(int fd, int timeout_ms = kPatienceMs) {
  pollfd ready{fd, POLLIN, 0};
  return poll(&ready, 1, timeout_ms) == 1;
}

// An agent's end.
struct Packet {
  std::string bytes;
  std::vector<UniqueFd> fds;
  Header header() const {
    Header out;
    memcpy(static_cast<void*>(&out), bytes.data(), std::min(bytes.size(), sizeof(out)));
    return out;
  }
  template <typename T>
  T As() const {
    EXPECT_EQ(static_cast<int>(header().type), static_cast<int>(T().header.type)) << Why();
    T out;
    memcpy(static_cast<void*>(&out), bytes.data(), std::min(bytes.size(), sizeof(out)));
    return out;
  }
  std::string Why() const {
    return header().type == Type::kRefused ? bytes.substr(offsetof(Refused, words)) : "";
  }
};

class AgentEnd {
 public:
  AgentEnd() = default;
  explicit AgentEnd(UniqueFd fd) : fd_(std::move(fd)) {}
  int fd() const { return fd_.get(); }

  bool SendBytes(const void* bytes, size_t size, const std::vector<int>& fds = {}) {
    iovec part{const_cast<void*>(bytes), size};
    std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
    }
    return sendmsg(fd_.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
  }
  template <typename T>
  bool Send(const T& request, const std::vector<int>& fds = {}) {
    return SendBytes(&request, sizeof(request), fds);
  }
  // The next packet of any kind; empty bytes: the connection has ended, or nothing came.
  Packet ReadPacket(int timeout_ms = kPatienceMs) {
    Packet out;
    if (!IsReadable(fd_.get(), timeout_ms)) return out;
    out.bytes.resize(kLongestPacket);
    char control[CMSG_SPACE(8 * sizeof(int))];
    iovec part{out.bytes.data(), out.bytes.size()};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t n = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
    out.bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
    for (cmsghdr* at = CMSG_FIRSTHDR(&message); n > 0 && at; at = CMSG_NXTHDR(&message, at)) {
      for (size_t i = 0; i < (at->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd;
        memcpy(&fd, CMSG_DATA(at) + i * sizeof(int), sizeof(fd));
        out.fds.emplace_back(fd);
      }
    }
    return out;
  }
  // The next answer; events before it are kept.
  Packet ReadAnswer() {
    for (;;) {
      Packet packet = ReadPacket();
      if (packet.bytes.empty() || packet.header().type < Type::kEnded) return packet;
      events_.push_back(std::move(packet));
    }
  }
  Packet ReadEvent() {
    if (events_.empty()) return ReadPacket();
    Packet first = std::move(events_.front());
    events_.pop_front();
    return first;
  }
  template <typename T>
  Packet Ask(const T& request, const std::vector<int>& fds = {}) {
    EXPECT_TRUE(Send(request, fds)) << strerror(errno);
    return ReadAnswer();
  }
  Refused AskAndBeRefused(const SpawnRequest& request, const std::vector<int>& fds = {}) {
    return Ask(request, fds).As<Refused>();
  }
  std::vector<JobEntry> List() {
    std::vector<JobEntry> out;
    EXPECT_TRUE(Send(Header{kVersion, Type::kList, 7}));
    for (;;) {
      const Packet packet = ReadAnswer();
      const Jobs jobs = packet.As<Jobs>();
      if (packet.bytes.empty()) return out;
      EXPECT_EQ(jobs.header.tag, 7u);
      out.insert(out.end(), jobs.entries, jobs.entries + jobs.count);
      if (jobs.more == 0) return out;
    }
  }

 private:
  UniqueFd fd_;
  std::deque<Packet> events_;
};

// What a fake shepherd tells, and somebody to tell it what to do.
class Shepherd {
 public:
  explicit Shepherd(UniqueFd fd) : fd_(std::move(fd)) {
    const std::string text = ReadUntil("\n\n");
    for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const std::pair<std::string, std::string> parts =
          absl::StrSplit(line, absl::MaxSplits(' ', 1));
      if (parts.first == "env") {
        env_.push_back(parts.second);
      } else {
        values_[parts.first] = parts.second;
      }
    }
  }
  std::string operator[](const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? "(nothing)" : found->second;
  }
  const std::vector<std::string>& env() const { return env_; }
  std::string Do(const std::string& words) {
    EXPECT_EQ(send(fd_.get(), words.data(), words.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(words.size()));
    return ReadUntil("\n");
  }

 private:
  std::string ReadUntil(const std::string& end) {
    std::string out;
    char buffer[4096];
    while (out.size() < end.size() || out.substr(out.size() - end.size()) != end) {
      if (!IsReadable(fd_.get())) break;
      const ssize_t n = read(fd_.get(), buffer, sizeof(buffer));
      if (n <= 0) break;
      out.append(buffer, static_cast<size_t>(n));
    }
    return out;
  }
  UniqueFd fd_;
  std::map<std::string, std::string> values_;
  std::vector<std::string> env_;
};

// A spawner in a cgroup and with an /etc of its own.
class SpawnerFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to become other users";
    auto parent = os::FindWritableCgroup();
    if (!parent.ok()) GTEST_SKIP() << parent.status();
    char name[] = "/tmp/dtrain-spawner-XXXXXX";
    base_ = mkdtemp(name);
    ASSERT_EQ(chmod(base_.c_str(), 0755), 0);
    // At the top of the hierarchy: the one that tests run in may be closed to users.
    for (absl::string_view line : absl::StrSplit(FileText("/proc/self/cgroup"), '\n')) {
      if (absl::ConsumePrefix(&line, "0::"))
        *parent = std::string(absl::StripSuffix(*parent, line));
    }
    auto made =
        os::Cgroup::Make(*parent, absl::StrCat("spawner-test-", getpid(), base_.substr(20)));
    ASSERT_TRUE(made.ok()) << made.status();
    cgroup_.emplace(*made);
    ASSERT_EQ(access((cgroup_->path() + "/cgroup.kill").c_str(), F_OK), 0) << "needs Linux 5.14";
    std::filesystem::create_directories(base_ + "/etc/dtrain");
    std::string passwd = "root:x:0:0::/root:/bin/sh\nsystem:x:999:999::/:/bin/sh\n";
    std::string group = "root:x:0:\n";
    for (const auto& [user, uid] : users_) {
      const char* shell = user == "locked" ? "/usr/sbin/nologin" : "/bin/sh";
      absl::StrAppend(&passwd, user, ":x:", uid, ":", uid, "::/home/", user, ":", shell, "\n");
      absl::StrAppend(&group, user, ":x:", uid, ":\n");
    }
    absl::StrAppend(&group, "gpu:x:", kGpu, ":alice\n");
    Write("etc/passwd", passwd);
    Write("etc/group", group);
    Write("etc/shells", "# shells\n/bin/sh\n");
    Write("etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\n");
    std::filesystem::create_directories(base_ + "/etc/pam.d");
    Write("etc/pam.d/dtrain", "account required pam_permit.so\n");
    Write("etc/pam.d/other", "account required pam_deny.so\n");
    users_socket_ = ListenAt(base_ + "/users.sock", SOCK_STREAM);
    // As it is installed: nobody can read it.
    shepherd_ = base_ + "/dtrain-shepherd";
    std::filesystem::copy_file(ProgramPath("fake-shepherd"), shepherd_);
    ASSERT_EQ(chmod(shepherd_.c_str(), 0711), 0);
  }
  void TearDown() override {
    if (base_.empty()) return;
    KillSpawner();
    if (cgroup_) {
      cgroup_->Kill();
      pollfd events{-1, POLLPRI, 0};
      const UniqueFd fd(open((cgroup_->path() + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
      events.fd = fd.get();
      absl::Status removed = cgroup_->Remove();
      for (int i = 0; i < 100 && !removed.ok(); ++i) {
        char text[64];
        (void)!pread(fd.get(), text, sizeof(text), 0);
        poll(&events, 1, 50);
        removed = cgroup_->Remove();
      }
      EXPECT_TRUE(removed.ok()) << removed;
    }
    std::filesystem::remove_all(base_);
  }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(base_ + "/" + name) << text;
    ASSERT_EQ(chmod((base_ + "/" + name).c_str(), 0644), 0);
  }
  void Configure(const std::string& text) { Write("etc/dtrain/spawner.conf", text); }

  // Everywhere: a machine may have a second mount, of a chroot.
  static void UnmountCgroups() {
    std::vector<std::string> mounts;
    std::string device, path, type, rest;
    for (std::ifstream in("/proc/self/mounts");
         in >> device >> path >> type && getline(in, rest);) {
      if (type == "cgroup2") mounts.push_back(path);
    }
    for (auto mount = mounts.rbegin(); mount != mounts.rend(); ++mount) {
      if (umount2(mount->c_str(), MNT_DETACH) != 0) _exit(96);
    }
  }
  // Runs it in this process's place.
  void Become(const std::vector<std::string>& flags, bool without_cgroups) {
    std::vector<std::string> words = {ProgramPath("dtrain-spawner"),
                                      "--run-dir",
                                      base_ + "/run",
                                      "--agent-user",
                                      "dtrain",
                                      "--shepherd",
                                      shepherd_};
    words.insert(words.end(), flags.begin(), flags.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string etc = base_ + "/etc", notify = "NOTIFY_SOCKET=" + base_ + "/notify";
    const int log = open((base_ + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    const std::string own = cgroup_->path() + start_in_;
    std::filesystem::create_directories(own);
    std::ofstream(own + "/cgroup.procs") << "0" << std::flush;
    std::ofstream("/proc/self/oom_score_adj") << "-500" << std::flush;
    if (unshare(CLONE_NEWNS) != 0 || mount("", "/", "", MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount(etc.c_str(), "/etc", "", MS_BIND, nullptr) != 0 || dup2(log, 1) != 1 ||
        dup2(log, 2) != 2 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
      _exit(99);
    }
    if (without_cgroups) UnmountCgroups();
    // What the unit leaves it.
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; ++capability) {
      const bool kept = capability == CAP_SETUID || capability == CAP_SETGID ||
                        capability == CAP_CHOWN || capability == CAP_DAC_OVERRIDE ||
                        capability == CAP_SYS_RESOURCE;
      if (!kept && prctl(PR_CAPBSET_DROP, capability) != 0) _exit(97);
    }
    putenv(const_cast<char*>(notify.c_str()));
    unsetenv("LANG");
    execv(argv[0], argv.data());
    _exit(98);
  }
  void Fork(const std::vector<std::string>& flags, bool without_cgroups = false) {
    pid_ = fork();
    if (pid_ == 0) Become(flags, without_cgroups);
    auto pidfd = os::OpenPidfd(pid_);
    ASSERT_TRUE(pidfd.ok()) << pidfd.status();
    pidfd_ = *std::move(pidfd);
  }
  // Waits until it says that it is ready.
  void Start(const std::vector<std::string>& flags = {}) {
    const UniqueFd notify = ListenAt(base_ + "/notify", SOCK_DGRAM);
    Fork(flags);
    pollfd either[] = {{notify.get(), POLLIN, 0}, {pidfd_.get(), POLLIN, 0}};
    ASSERT_GE(poll(either, 2, kPatienceMs), 1);
    char text[16] = {};
    ASSERT_NE(either[0].revents, 0) << Log();
    ASSERT_EQ(read(notify.get(), text, sizeof(text)), 7);
    ASSERT_STREQ(text, "READY=1");
  }
  void KillSpawner() {
    if (!pidfd_) return;
    EXPECT_TRUE(os::SendSignal(pidfd_.get(), SIGKILL).ok());
    (void)os::WaitAndReap(pidfd_.get());
    pidfd_ = UniqueFd();
  }
  int WaitForEnd() {
    EXPECT_TRUE(IsReadable(pidfd_.get()));
    const auto status = os::WaitAndReap(pidfd_.get());
    pidfd_ = UniqueFd();
    return status.ok() ? status->code : -1;
  }
  std::string Log() const { return FileText(base_ + "/log"); }

  UniqueFd Connect(uid_t uid) {
    UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const As as(uid);
    if (!ConnectTo(fd.get(), base_ + "/run/agent.sock")) return UniqueFd();
    return fd;
  }
  // The one agent. A spawner may still have to notice that the last one has gone.
  AgentEnd Agent() {
    for (int i = 0; i < 100; ++i) {
      AgentEnd agent(Connect(users_.at("dtrain")));
      if (agent.fd() < 0) break;
      Packet answer;
      if (agent.Send(Header{kVersion, Type::kAlive, 1})) answer = agent.ReadAnswer();
      if (!answer.bytes.empty()) return agent;
      poll(nullptr, 0, 10);
    }
    ADD_FAILURE() << "no connection\n" << Log();
    return AgentEnd();
  }
  // {accepted, the user's}
  std::pair<UniqueFd, UniqueFd> UserConnection(uid_t uid) {
    UniqueFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    {
      const As as(uid);
      EXPECT_TRUE(ConnectTo(client.get(), base_ + "/users.sock"));
    }
    return {UniqueFd(accept4(users_socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)),
            std::move(client)};
  }
  static SpawnRequest ByAccount(const std::string& job, const std::string& account) {
    SpawnRequest request;
    request.header.tag = 5;
    Put(job, request.job);
    request.proof = Proof::kAccount;
    request.lease_ms = 10'000;
    request.grace_ms = 2'000;
    Put(account, request.account);
    return request;
  }
  static SpawnRequest ByConnection(const std::string& job) {
    SpawnRequest request = ByAccount(job, "");
    request.proof = Proof::kConnection;
    return request;
  }
  UniqueFd ConnectToLink(const std::string& link) {
    const std::string folder = link.substr(0, link.rfind('/'));
    const UniqueFd directory(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const std::string path = absl::StrCat("/proc/self/fd/", directory.get(), "/link.sock");
    // This process's own /proc is root's.
    if (!ConnectTo(fd.get(), path)) return UniqueFd();
    return fd;
  }
  static KillRequest Kill(const Name& name) {
    KillRequest request;
    request.header.tag = 9;
    request.name = name;
    return request;
  }
  size_t Descriptors() const {
    size_t count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(absl::StrCat("/proc/", pid_, "/fd"))) {
      (void)entry;
      ++count;
    }
    return count;
  }
  // Once there are so many, or after a while.
  size_t SettledDescriptors(size_t wanted) const {
    for (int i = 0; i < 500 && Descriptors() != wanted; ++i) poll(nullptr, 0, 10);
    return Descriptors();
  }
  // A number of /proc/PID/status.
  int64_t Status(const std::string& word) const {
    const std::string text = FileText(absl::StrCat("/proc/", pid_, "/status"));
    const size_t at = text.find("\n" + word + ":");
    return at == text.npos ? -1 : atoll(text.c_str() + at + word.size() + 2);
  }
  // Waits until a file is gone, looking often.
  static bool Vanishes(const std::string& path) {
    for (int i = 0; i < kPatienceMs / 10; ++i) {
      if (access(path.c_str(), F_OK) != 0) return true;
      poll(nullptr, 0, 10);
    }
    return false;
  }

  static constexpr gid_t kGpu = 44444;
  // Of this run alone: limits of processes count those of a number wherever they are.
  const std::map<std::string, uid_t> users_ = {
      {"alice", 100'000 + static_cast<uid_t>(getpid())},
      {"mallory", 50'000'000 + static_cast<uid_t>(getpid())},
      {"locked", 60'000'000 + static_cast<uid_t>(getpid())},
      {"dtrain", 70'000'000 + static_cast<uid_t>(getpid())}};
  std::string base_, shepherd_;
  std::optional<os::Cgroup> cgroup_;
  UniqueFd users_socket_, pidfd_;
  pid_t pid_ = 0;
  std::string start_in_ = "/spawner";  // as systemd 254 does; older: "", in the unit's own cgroup
};

}  // namespace dtrain::spawner
