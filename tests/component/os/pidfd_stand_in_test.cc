// SPDX-License-Identifier: Apache-2.0
// What takes the place of a pidfd, by itself. The other tests of this folder use it throughout when
// they run as on Linux 4.18 (old-kernel).
#include "common/os/pidfd_stand_in.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <iterator>

#include "common/os/fd.h"

namespace dtrain::os {
namespace {

constexpr int kDeadlineMs = 30'000;

bool TellsOfTheEnd(int fd, int timeout_ms = kDeadlineMs) {
  pollfd state = {fd, POLLIN, 0};
  int n;
  do {
    n = poll(&state, 1, timeout_ms);  // from the start again, since the signal interrupts it
  } while (n < 0 && errno == EINTR);
  return n == 1;
}

// A child that waits to be killed.
pid_t Sleeper() {
  const pid_t pid = fork();
  if (pid == 0) {
    while (true) pause();
  }
  return pid;
}

UniqueFd StandIn(pid_t child) {
  auto pipe = Pipe();
  EXPECT_TRUE(pipe.ok());
  return StandInForChild(child, *std::move(pipe));
}

TEST(PidfdStandIn, TellsOfTheEndOfAChildOnceItHasEnded) {
  const pid_t child = Sleeper();
  const UniqueFd fd = StandIn(child);
  EXPECT_FALSE(TellsOfTheEnd(fd.get(), 0));
  EXPECT_EQ(ChildOfStandIn(fd.get()), child);
  EXPECT_TRUE(SignalByStandIn(fd.get(), SIGKILL).ok());
  EXPECT_TRUE(TellsOfTheEnd(fd.get()));
  EXPECT_TRUE(SignalByStandIn(fd.get(), SIGKILL).ok()) << "it is not reaped, so it is there";
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  ForgetStandIn(fd.get());
  EXPECT_EQ(ChildOfStandIn(fd.get()), 0);
  EXPECT_TRUE(absl::IsNotFound(SignalByStandIn(fd.get(), SIGKILL)));
}

TEST(PidfdStandIn, TellsAlsoOfAnEndThatCameBeforeIt) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info;
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  const UniqueFd fd = StandIn(child);
  EXPECT_TRUE(TellsOfTheEnd(fd.get(), 0));
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  ForgetStandIn(fd.get());
}

std::atomic<int> heard = 0;

TEST(PidfdStandIn, TheHandlerThatWasThereIsStillCalled) {
  struct sigaction own = {}, before = {};
  own.sa_handler = [](int) { ++heard; };
  ASSERT_EQ(sigaction(SIGCHLD, &own, &before), 0);
  const pid_t child = Sleeper();
  const UniqueFd fd = StandIn(child);
  EXPECT_TRUE(SignalByStandIn(fd.get(), SIGKILL).ok());
  EXPECT_TRUE(TellsOfTheEnd(fd.get()));
  EXPECT_EQ(heard, 1);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  ForgetStandIn(fd.get());
  EXPECT_EQ(sigaction(SIGCHLD, &before, nullptr), 0);
}

TEST(PidfdStandIn, AProcessThatIsNoChildIsWatchedToo) {
  auto pipe = Pipe();
  ASSERT_TRUE(pipe.ok());
  const pid_t middle = fork();
  if (middle == 0) {
    const pid_t below = Sleeper();
    (void)!write(pipe->second.get(), &below, sizeof(below));
    while (true) pause();
  }
  pid_t below = 0;
  ASSERT_EQ(read(pipe->first.get(), &below, sizeof(below)), ssize_t{sizeof(below)});
  auto fd = StandInForProcess(below);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_FALSE(TellsOfTheEnd(fd->get(), 0));
  EXPECT_EQ(ChildOfStandIn(fd->get()), 0);
  EXPECT_TRUE(SignalByStandIn(fd->get(), SIGKILL).ok());
  EXPECT_TRUE(TellsOfTheEnd(fd->get()));
  EXPECT_TRUE(absl::IsNotFound(SignalByStandIn(fd->get(), SIGKILL)));

  auto child = StandInForProcess(middle);
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(ChildOfStandIn(child->get()), middle);
  EXPECT_TRUE(SignalByStandIn(child->get(), SIGKILL).ok());
  EXPECT_TRUE(TellsOfTheEnd(child->get()));
  EXPECT_EQ(waitpid(middle, nullptr, 0), middle);
  ForgetStandIn(child->get());
}

TEST(PidfdStandIn, NobodyHasNone) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(absl::IsNotFound(StandInForProcess(child).status()));
}

size_t OpenDescriptors() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST(PidfdStandIn, WhatNobodyHoldsIsClosed) {
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(StandInForProcess(getppid()).ok());
  const pid_t child = Sleeper();
  for (int i = 0; i < 20; ++i) EXPECT_GE(StandIn(child).get(), 0);
  EXPECT_LE(OpenDescriptors(), before + 2) << "more than the last one is open";
  const UniqueFd fd = StandIn(child);
  EXPECT_TRUE(SignalByStandIn(fd.get(), SIGKILL).ok());
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  ForgetStandIn(fd.get());
}

}  // namespace
}  // namespace dtrain::os
