// SPDX-License-Identifier: Apache-2.0
#include "common/os/bounded_look.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "common/os/pidfd.h"
#include "common/os/unique_fd.h"

// H13
namespace dtrain::os {
namespace {

TEST(BoundedLook, ALookThatReturnsIsAwaited) {
  EXPECT_TRUE(ReturnsWithin(std::chrono::seconds(60), [] {}));
  EXPECT_FALSE(HasChildren());
}

TEST(BoundedLook, OneThatDoesNotIsGivenUpAndLeavesNobody) {
  EXPECT_FALSE(ReturnsWithin(std::chrono::milliseconds(20), [] {
    while (true) pause();
  }));
  while (EndedChild() != 0) ReapQuietly(EndedChild());
  EXPECT_FALSE(HasChildren());
}

TEST(BoundedLook, WhatItDoesStaysInItsProcess) {
  int found = 1;
  EXPECT_TRUE(ReturnsWithin(std::chrono::seconds(60), [&] { found = 2; }));
  EXPECT_EQ(found, 1);
}

TEST(BoundedLook, WhereNothingIsLateNobodyIsTold) {
  AwaitReturn(
      std::chrono::seconds(60), [] {}, [] { ADD_FAILURE(); });
  EXPECT_FALSE(HasChildren());
}

TEST(BoundedLook, OneThatIsLateIsToldOfOnceAndAwaited) {
  char directory[] = "/tmp/dtrain-look-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const std::string fifo = std::string(directory) + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  int told = 0;
  // The look waits in open() for a writer.
  AwaitReturn(
      std::chrono::milliseconds(20), [&] { const UniqueFd reader(open(fifo.c_str(), O_RDONLY)); },
      [&] {
        ++told;
        const UniqueFd writer(open(fifo.c_str(), O_WRONLY));
      });
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(HasChildren());
  unlink(fifo.c_str());
  rmdir(directory);
}

TEST(BoundedLook, OnlyWhatLiesOnADiskIsAtHand) {
  struct stat root {};
  ASSERT_EQ(stat("/", &root), 0);
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_CACHED;
  const UniqueFd fd(static_cast<int>(syscall(SYS_openat2, AT_FDCWD, "/", &how, sizeof(how))));
  const bool can_tell = fd && major(root.st_dev) != 0;  // Linux 5.12
  EXPECT_EQ(IsAtHand("/"), can_tell);
  EXPECT_EQ(IsAtHand("/."), can_tell);
  EXPECT_FALSE(IsAtHand("/proc/self"));
  EXPECT_FALSE(IsAtHand("/no/such/folder"));
}

}  // namespace
}  // namespace dtrain::os
