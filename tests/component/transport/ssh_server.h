// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pwd.h>
#include <signal.h>
#include <sys/wait.h>

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/os/pidfd.h"
#include "common/os/spawn.h"
#include "tests/component/transport/harness.h"

namespace dtrain::transport {

// Runs a program to its end; its exit code.
inline int RunProgram(std::vector<std::string> argv) {
  os::SpawnSpec spec;
  spec.argv = std::move(argv);
  for (char** e = environ; *e != nullptr; ++e) spec.env.emplace_back(*e);
  auto child = os::Spawn(spec);
  if (!child.ok()) return 127;
  auto exit = os::WaitAndReap(child->pidfd.get());
  return exit.ok() && exit->signal == 0 ? exit->code : 128;
}

// A listening socket on a free port of 127.0.0.1.
struct Listener {
  explicit Listener(int backlog = 16) : fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size);
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
    listen(fd.get(), backlog);
    port = ntohs(address.sin_port);
  }
  os::UniqueFd fd;
  uint16_t port = 0;
};

inline os::UniqueFd RawConnection(uint16_t port) {
  os::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) fd.Reset();
  return fd;
}

// An sshd that is not root's lets in nobody else.
inline std::string UserName() {
  const passwd* const entry = getpwuid(geteuid());
  return entry == nullptr ? "root" : entry->pw_name;
}

// An sshd of the test's own on loopback, and the client's files that reach it as "node1". All of
// it lives in one directory, which is also the user's home there; only /run/sshd, which sshd
// insists on, is made outside.
class SshServer {
 public:
  // `extra`: more lines of sshd_config.
  explicit SshServer(const std::string& extra = "") {
    mkdir("/run/sshd", 0755);
    for (const char* name : {"host_key", "id", "ca"}) Keygen(name);
    Sign("host_key", {"-h", "-n", "127.0.0.1"});
    WriteFile(dir_ / "authorized_keys", ReadAll(dir_ / "id.pub"));
    { port_ = Listener().port; }
    WriteFile(dir_ / "sshd_config",
              absl::StrCat("Port ", port_, "\nListenAddress 127.0.0.1\nHostKey ", dir_ / "host_key",
                           "\nHostCertificate ", dir_ / "host_key-cert.pub", "\nTrustedUserCAKeys ",
                           dir_ / "ca.pub", "\nAuthorizedKeysFile ", dir_ / "authorized_keys",
                           "\nPidFile none\nStrictModes no\nUsePAM no\nLogLevel VERBOSE\n"
                           "PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
                           "SetEnv HOME=",
                           dir_.path(), "\n", extra, "\n"));
    Trust("host_key");
    WriteConfig("");
    os::SpawnSpec spec;
    spec.argv = {"/usr/sbin/sshd", "-D", "-f", dir_ / "sshd_config", "-E", dir_ / "log"};
    spec.env = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin"};
    spec.parent_death_signal = SIGKILL;  // also when the test crashes
    auto child = os::Spawn(spec);
    if (child.ok()) child_ = std::move(*child);
    listening_ = child.ok() && AwaitLog("Server listening");
  }
  ~SshServer() {
    if (!child_.pidfd) return;
    for (pid_t pid : Sessions()) kill(pid, SIGKILL);
    kill(child_.pid, SIGKILL);
    (void)os::WaitAndReap(child_.pidfd.get());
  }

  bool listening() const { return listening_; }
  uint16_t port() const { return port_; }
  const TempDir& dir() const { return dir_; }
  std::string config() const { return dir_ / "config"; }

  // The client's configuration; `lines` come first and so win.
  void WriteConfig(const std::string& lines) {
    WriteFile(config(),
              absl::StrCat("Host node1\n", lines, "\n  HostName 127.0.0.1\nHost node*\n  Port ",
                           port_, "\n  User ", UserName(), "\n  IdentityFile ", dir_ / "id",
                           "\n  IdentitiesOnly yes\n  IdentityAgent none\n  UserKnownHostsFile ",
                           dir_ / "known_hosts", "\n  GlobalKnownHostsFile /dev/null\n"));
  }
  void Keygen(const std::string& name, const std::string& passphrase = "") {
    RunProgram(
        {"ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", dir_ / name});
  }
  // The key NAME-cert.pub, signed by `ca`, which the server takes of users.
  void Sign(const std::string& name, std::vector<std::string> of) {
    std::vector<std::string> words = {"ssh-keygen", "-q", "-s", dir_ / "ca", "-I", "test"};
    words.insert(words.end(), of.begin(), of.end());
    words.push_back(dir_ / (name + ".pub"));
    RunProgram(std::move(words));
  }
  // Lets known_hosts say that the server has this key.
  void Trust(const std::string& key) {
    WriteFile(dir_ / "known_hosts",
              absl::StrCat("[127.0.0.1]:", port_, " ", ReadAll(dir_ / (key + ".pub"))));
  }
  bool AwaitLog(const std::string& text) const {
    TimePoint deadline = Clock::now() + kDeadline;
    while (!absl::StrContains(ReadAll(dir_ / "log"), text)) {
      if (Clock::now() > deadline) return false;
      poll(nullptr, 0, 5);
    }
    return true;
  }
  // The process of each connection, the oldest first. Ordinary users have another sshd around it,
  // which ends with it.
  std::vector<pid_t> Sessions() const {
    std::vector<pid_t> out;
    for (pid_t pid : Children(child_.pid)) {
      for (pid_t inner = pid; inner != 0;) {
        pid = inner;
        inner = 0;
        for (pid_t child : Children(pid)) {
          if (ReadAll(absl::StrCat("/proc/", child, "/comm")) == "sshd\n") inner = child;
        }
      }
      out.push_back(pid);
    }
    return out;
  }

 private:
  static std::vector<pid_t> Children(pid_t parent) {
    std::vector<pid_t> out;
    std::istringstream in(ReadAll(absl::StrCat("/proc/", parent, "/task/", parent, "/children")));
    for (pid_t pid; in >> pid;) out.push_back(pid);
    return out;
  }

  TempDir dir_;
  uint16_t port_ = 0;
  os::Child child_;
  bool listening_ = false;
};

}  // namespace dtrain::transport
