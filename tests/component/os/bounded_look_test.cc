// SPDX-License-Identifier: Apache-2.0
#include "common/os/bounded_look.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <chrono>

#include "common/os/pidfd.h"

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

TEST(BoundedLook, OnlyWhatLiesOnADiskIsAtHand) {
  struct stat root {};
  ASSERT_EQ(stat("/", &root), 0);
  EXPECT_EQ(IsAtHand("/"), major(root.st_dev) != 0);
  EXPECT_EQ(IsAtHand("/."), major(root.st_dev) != 0);
  EXPECT_FALSE(IsAtHand("/proc/self"));
  EXPECT_FALSE(IsAtHand("/no/such/folder"));
}

}  // namespace
}  // namespace dtrain::os
