// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <utility>

#include "common/loop/loop.h"
#include "common/os/fd.h"

namespace dtrain::loop {
namespace {

constexpr Duration kPatience = std::chrono::seconds(30);

// Two descriptors are ready in one round of epoll. The first one's watcher closes the second, and
// the next descriptor gets its number and its place in the reactor.
class ReusedDescriptorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto first = os::SocketPair();
    auto second = os::SocketPair();
    ASSERT_TRUE(first.ok() && second.ok());
    first_ = *std::move(first);
    old_ = *std::move(second);
    first_watch_.emplace(loop_, first_.first.get());
    old_watch_.emplace(loop_, old_.first.get());
  }
  void MakeBothReady() {
    ASSERT_EQ(send(first_.second.get(), "x", 1, 0), 1);
    old_.second.Reset();
  }
  // As new_, where old_ was.
  void Replace() {
    old_watch_.reset();
    const int number = old_.first.get();
    old_.first.Reset();
    auto pair = os::SocketPair();
    ASSERT_TRUE(pair.ok());
    new_ = *std::move(pair);
    ASSERT_EQ(new_.first.get(), number);
    new_watch_.emplace(loop_, number);
  }
  void RunUntilStopped() {
    Timer timer(loop_);
    timer.After(kPatience, [this] {
      ADD_FAILURE() << "nothing happened";
      loop_.Stop();
    });
    loop_.Run();
  }

  Loop loop_;
  std::pair<os::UniqueFd, os::UniqueFd> first_, old_, new_;
  std::optional<FdWatch> first_watch_, old_watch_, new_watch_;
};

TEST_F(ReusedDescriptorTest, HearsOfNoHangupButItsOwn) {
  bool closed = false;
  old_watch_->OnHangup([] { FAIL() << "it was closed before"; });
  first_watch_->OnReadable([&] {
    Replace();
    new_watch_->OnHangup([&] {
      EXPECT_TRUE(closed);
      loop_.Stop();
    });
    // What is pending has its turn first.
    loop_.Post([&] {
      loop_.Post([&] {
        closed = true;
        new_.second.Reset();
      });
    });
  });
  MakeBothReady();
  RunUntilStopped();
}

TEST_F(ReusedDescriptorTest, IsNotReadableForAnothersSake) {
  bool written = false;
  old_watch_->OnReadable([] { FAIL() << "it was closed before"; });
  first_watch_->OnReadable([&] {
    Replace();
    new_watch_->OnReadable([&] {
      EXPECT_TRUE(written);
      loop_.Stop();
    });
    loop_.Post([&] {
      loop_.Post([&] {
        written = true;
        EXPECT_EQ(send(new_.second.get(), "x", 1, 0), 1);
      });
    });
  });
  MakeBothReady();
  RunUntilStopped();
}

}  // namespace
}  // namespace dtrain::loop
