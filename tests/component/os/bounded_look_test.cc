// SPDX-License-Identifier: Apache-2.0
#include "common/os/bounded_look.h"

#include <gtest/gtest.h>
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

}  // namespace
}  // namespace dtrain::os
