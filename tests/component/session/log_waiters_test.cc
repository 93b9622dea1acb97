// SPDX-License-Identifier: Apache-2.0
#include "agent/session/log_waiters.h"

#include <gtest/gtest.h>

namespace dtrain::session {
namespace {

TEST(LogWaitersTest, ReadersThatLeftLeaveNothingBehind) {
  loop::Loop loop;
  LogWaiters waiters;
  const auto connection = std::make_shared<int>();
  for (int i = 0; i < 1000; ++i) {
    auto task = std::make_shared<loop::Task>([connection] {});
    waiters.Add(task);
  }
  EXPECT_EQ(connection.use_count(), 1);
  EXPECT_LE(waiters.size(), 1u);
}

TEST(LogWaitersTest, EachIsCalledOnceAndNotWhenItHasLeft) {
  loop::Loop loop;
  LogWaiters waiters;
  int called = 0;
  auto stays = std::make_shared<loop::Task>([&] { ++called; });
  auto leaves = std::make_shared<loop::Task>([&] { called += 100; });
  waiters.Add(stays);
  waiters.Add(leaves);
  waiters.WakeAll(loop);
  leaves.reset();  // after it was woken, before its turn
  waiters.WakeAll(loop);
  loop.Post([&] { loop.Stop(); });
  loop.Run();
  EXPECT_EQ(called, 1);
}

}  // namespace
}  // namespace dtrain::session
