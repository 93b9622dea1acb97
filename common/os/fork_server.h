// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/os/account.h"
#include "common/os/spawn.h"
#include "common/os/unique_fd.h"

namespace dtrain::os {

// What a forked process begins with. Descriptors are borrowed.
struct ForkSpec {
  int socket_fd = -1;             // its kForkedSocket
  int cgroup_fd = -1;             // as for Spawn
  const Account* user = nullptr;  // as for Spawn; then it begins in / and with `env`
  std::vector<std::string> env;
};

// A process that has gone through the start of a program, and of which further ones are forked as
// they are needed: without the cost of a start (exec, linking, constructors), and without anything
// of this process in their memory, which may have threads and keep secrets. It ends with
// this object, and with the thread that started it.
//
// What is forked is a child of ours, as if Spawn had made it: of its own process group, in its
// cgroup from its first moment on, with standard streams as the server's and no other descriptor.
class ForkServer {
 public:
  // `argv` is a program that calls ServeForks; `env` is all that its processes know of ours.
  ForkServer(std::vector<std::string> argv, std::vector<std::string> env);
  ~ForkServer();
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;

  // Starts it, if it is not there: else the first Fork does.
  absl::Status Start();
  // Waits until the process has all of `spec`, which takes less than a millisecond. UNAVAILABLE:
  // there is none and will be none, as the server was lost (the next call starts another) or the
  // kernel cannot do it (before Linux 5.7); Spawn can. All else is as from Spawn.
  absl::StatusOr<Child> Fork(const ForkSpec& spec);
  // 0: it is not there.
  pid_t pid() const { return server_.pid; }

 private:
  absl::StatusOr<Child> Answered();
  void End();

  const std::vector<std::string> argv_;
  const std::vector<std::string> env_;
  Child server_;
  UniqueFd socket_;
};

inline constexpr int kForkedSocket = 3;

// The other side, in a process that has one thread: returns true in each forked process, and false
// in the server once who started it is gone.
bool ServeForks();

}  // namespace dtrain::os
