// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace dtrain::report {
namespace {

class ProgressDrawTest : public testing::Test {
 protected:
  void RunUntil(const std::function<bool()>& done) {
    loop::Timer deadline(loop_);
    bool late = false;
    deadline.After(std::chrono::seconds(20), [&] { late = true; });
    while (!done() && !late) loop_.context().run_one();
    ASSERT_FALSE(late);
  }

  loop::Loop loop_;
  std::string line_ = "connect 1/2";
  std::vector<std::string> shown_;
  Progress progress_{loop_, [this](TimePoint) { return line_; },
                     [this](absl::string_view line) { shown_.emplace_back(line); }};
};

TEST_F(ProgressDrawTest, DrawsNothingUntilToldThatThereIsSomething) {
  loop::Timer timer(loop_);
  bool passed = false;
  timer.After(std::chrono::milliseconds(400), [&] { passed = true; });
  RunUntil([&] { return passed; });
  EXPECT_TRUE(shown_.empty());
}

TEST_F(ProgressDrawTest, TheClocksMoveWithoutAnyEventUntilStopped) {
  progress_.Update();
  EXPECT_TRUE(shown_.empty());  // not in the first moments
  RunUntil([&] { return shown_.size() >= 3; });
  progress_.Stop();
  EXPECT_EQ(shown_.back(), "");
  progress_.Update();
  EXPECT_EQ(shown_.size(), 4u);
}

TEST_F(ProgressDrawTest, AnEmptyLineWaitsForTheNextUpdate) {
  line_ = "";
  progress_.Update();
  RunUntil([&] { return shown_.size() == 1; });
  line_ = "stop 1/2";
  progress_.Update();
  RunUntil([&] { return shown_.size() == 2; });
  EXPECT_EQ(shown_.back(), "stop 1/2");
}

}  // namespace
}  // namespace dtrain::report
