// SPDX-License-Identifier: Apache-2.0
// What belongs to the loop's thread is found out elsewhere.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "common/loop/loop.h"

namespace dtrain::loop {
namespace {

TEST(LoopThreadTest, KnowsItsThread) {
  Loop loop;
  EXPECT_TRUE(loop.OnThread()) << "nobody turns it";
  std::promise<bool> inside;
  loop.Post([&] { inside.set_value(loop.OnThread()); });
  std::thread turns([&] { loop.Run(); });
  EXPECT_TRUE(inside.get_future().get());
  EXPECT_FALSE(loop.OnThread());
  loop.Stop();
  turns.join();
  EXPECT_TRUE(loop.OnThread());
}

#ifdef DTRAIN_CHECKS_THREADS
void ArmFromAnotherThread() {
  Loop loop;
  std::promise<void> turns;
  loop.Post([&] { turns.set_value(); });
  std::thread thread([&] { loop.Run(); });
  turns.get_future().wait();
  Timer timer(loop);
  timer.After(std::chrono::seconds(1), [] {});
  thread.join();
}

TEST(LoopThreadDeathTest, ATimerOfAnotherThreadIsFoundOut) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(ArmFromAnotherThread(), "OnThread");
}
#endif

}  // namespace
}  // namespace dtrain::loop
