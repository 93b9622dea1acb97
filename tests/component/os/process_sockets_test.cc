// SPDX-License-Identifier: Apache-2.0
#include "common/os/process_sockets.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <string>

#include "common/os/unique_fd.h"

namespace dtrain::os {
namespace {

// A process that has done something and waits.
class Doer {
 public:
  explicit Doer(const std::function<void()>& what) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      what();
      (void)!write(ends[1], "x", 1);
      while (true) pause();
    }
    char done = 0;
    EXPECT_EQ(read(ends[0], &done, 1), 1);
    close(ends[0]);
    close(ends[1]);
  }
  ~Doer() {
    (void)kill(pid_, SIGKILL);
    (void)waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

// A port of this machine at which nobody listens, as long as the socket is there.
struct ClosedPort {
  ClosedPort() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  }
  // In a child, which has no use for the one that keeps the port.
  int Connect() {
    socket.Reset();
    // As those do that have a time limit. After one that blocks the kernel has nothing to tell.
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    (void)connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    pollfd refused{fd, POLLOUT, 0};
    (void)poll(&refused, 1, -1);
    return fd;
  }
  UniqueFd socket;
  sockaddr_in address{};
};

// Before Linux 5.6 nobody has another process's descriptors.
bool SeesSockets() { return syscall(SYS_pidfd_getfd, -1, 0, 0) >= 0 || errno != ENOSYS; }

TEST(ProcessSocketsTest, AConnectInVainToThisMachineIsSeen) {
  ClosedPort closed;
  const Doer tries([&] { (void)closed.Connect(); });
  const auto port = FailedLoopbackConnect(tries.pid());
  ASSERT_EQ(port.has_value(), SeesSockets());
  if (!port) return;
  EXPECT_NE(*port, ntohs(closed.address.sin_port));
  closed.socket.Reset();
  const Doer idle([] {});
  EXPECT_FALSE(FailedLoopbackConnect(idle.pid()).has_value());
  const Doer fresh([] {
    (void)::socket(AF_INET, SOCK_STREAM, 0);
    (void)::socket(AF_INET, SOCK_DGRAM, 0);
    (void)::socket(AF_UNIX, SOCK_STREAM, 0);
  });
  EXPECT_FALSE(FailedLoopbackConnect(fresh.pid()).has_value());
  const Doer listens([] {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    (void)bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof(any));
    (void)listen(fd, 1);
  });
  EXPECT_FALSE(FailedLoopbackConnect(listens.pid()).has_value());
  EXPECT_FALSE(FailedLoopbackConnect(1999999999).has_value());
}

TEST(ProcessSocketsTest, WhatAProcessHasSetItselfIsFound) {
  const Doer sets([] {
    setenv("DTRAIN_TEST_ADDR", "localhost", 1);
    (void)!setenv("DTRAIN_TEST_LONG", std::string(5000, 'x').c_str(), 1);
  });
#ifndef __SANITIZE_ADDRESS__  // whose malloc does not use the heap
  EXPECT_EQ(VariableSetByItself(sets.pid(), "DTRAIN_TEST_ADDR"), "localhost");
#endif
  EXPECT_FALSE(VariableSetByItself(sets.pid(), "DTRAIN_TEST_LONG").has_value());
  EXPECT_FALSE(VariableSetByItself(sets.pid(), "DTRAIN_TEST_PORT").has_value());
  EXPECT_FALSE(VariableSetByItself(1999999999, "DTRAIN_TEST_ADDR").has_value());
}

}  // namespace
}  // namespace dtrain::os
