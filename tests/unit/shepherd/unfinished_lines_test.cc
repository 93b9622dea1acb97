// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/unfinished_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

namespace dtrain::shepherd {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const UnfinishedLines::Key kStdout{0, v1::STREAM_KIND_STDOUT};
const UnfinishedLines::Key kStderr{0, v1::STREAM_KIND_STDERR};
const UnfinishedLines::Key kOther{1, v1::STREAM_KIND_STDERR};

// As LogFeed uses it: with a timer, and a send for each step by which a stream goes on.
class UnfinishedLinesTest : public ::testing::Test {
 protected:
  void Write(const UnfinishedLines::Key& key, const std::string& text) {
    const uint64_t from = lines_.size(key);
    const size_t at = text.rfind('\n');
    const uint64_t before = lines_.passed(key);
    lines_.OnGrown(now_, key, at == std::string::npos ? 0 : from + at + 1, from + text.size());
    if (lines_.passed(key) > before) ++sends_;
  }
  void Advance(milliseconds by) {
    const TimePoint until = now_ + by;
    while (lines_.NextDeadline() <= until) {
      now_ = std::max(now_, lines_.NextDeadline());
      sends_ += static_cast<int>(lines_.OnTime(now_).size());
    }
    now_ = until;
  }

  TimePoint now_{std::chrono::hours(1)};
  UnfinishedLines lines_;
  int sends_ = 0;
};

TEST_F(UnfinishedLinesTest, WholeLinesGoAtOnce) {
  for (int i = 1; i <= 1000; ++i) {
    Write(kStdout, "line\n");
    ASSERT_EQ(lines_.passed(kStdout), lines_.size(kStdout));
    ASSERT_EQ(sends_, i);
  }
  EXPECT_EQ(lines_.NextDeadline(), kNever);
}

TEST_F(UnfinishedLinesTest, ABarOfAThousandStatesInASecondGoesElevenTimes) {
  for (int i = 0; i < 1000; ++i) {
    Write(kStderr, "\r 10%|####      | 100/1000");
    Advance(milliseconds(1));
  }
  EXPECT_LE(sends_, 11);
  EXPECT_GE(sends_, 10);
  Advance(milliseconds(100));
  EXPECT_EQ(lines_.passed(kStderr), lines_.size(kStderr));
  EXPECT_LE(sends_, 12);
  EXPECT_EQ(lines_.NextDeadline(), kNever);
}

// A reader wakes up ten times a second, not for each rank.
TEST_F(UnfinishedLinesTest, TheBarsOfAllRanksGoAtTheSameTime) {
  Write(kStdout, "ready? ");
  Advance(milliseconds(30));
  Write(kStderr, "\r1");
  Advance(milliseconds(30));
  Write(kOther, "\r1");
  EXPECT_EQ(lines_.passed(kStderr), 0u);
  Advance(milliseconds(39));
  EXPECT_THAT(lines_.OnTime(now_), IsEmpty());
  now_ += milliseconds(1);
  EXPECT_THAT(lines_.OnTime(now_), ElementsAre(kStderr, kOther));
  EXPECT_EQ(lines_.passed(kStderr), 2u);
  EXPECT_EQ(lines_.passed(kOther), 2u);
}

TEST_F(UnfinishedLinesTest, APromptAfterAQuietTimeGoesAtOnce) {
  Write(kStdout, "first: ");
  EXPECT_EQ(lines_.passed(kStdout), 7u);
  Write(kStdout, "second: ");
  EXPECT_EQ(lines_.passed(kStdout), 7u);
  Advance(milliseconds(300));
  EXPECT_EQ(lines_.passed(kStdout), 15u);
  Write(kStdout, "third: ");
  EXPECT_EQ(lines_.passed(kStdout), 22u);
}

TEST_F(UnfinishedLinesTest, LinesGoWithoutTheTextBehindThem) {
  Write(kStdout, "x");
  Write(kStdout, "y\nz");
  EXPECT_EQ(lines_.passed(kStdout), 3u);
  Write(kStdout, "\n");
  EXPECT_EQ(lines_.passed(kStdout), 5u);
  EXPECT_EQ(lines_.NextDeadline(), kNever);
}

// A timer that comes late makes nobody wait for another pause.
TEST_F(UnfinishedLinesTest, WhatIsDueDoesNotWaitAgain) {
  Write(kStdout, "a");
  Write(kStdout, "b");
  now_ += milliseconds(500);
  Write(kStderr, "c");
  EXPECT_LE(lines_.NextDeadline(), now_);
  EXPECT_THAT(lines_.OnTime(now_), ElementsAre(kStdout, kStderr));
}

TEST_F(UnfinishedLinesTest, ALongTextGoesAtOnce) {
  Write(kStdout, "a");
  for (int i = 0; i < 100; ++i) {
    Write(kStdout, std::string(UnfinishedLines::kMostHeld + 1, 'x'));
    ASSERT_EQ(lines_.passed(kStdout), lines_.size(kStdout));
  }
}

TEST_F(UnfinishedLinesTest, AtTheEndOfItsWriterTheRestGoes) {
  Write(kStdout, "a");
  Write(kStdout, "b");
  Write(kOther, "c");
  lines_.LetGo(kStdout);
  EXPECT_EQ(lines_.passed(kStdout), 2u);
  EXPECT_EQ(lines_.passed(kOther), 0u);
  lines_.LetGo(kOther);
  EXPECT_EQ(lines_.passed(kOther), 1u);
  EXPECT_EQ(lines_.NextDeadline(), kNever);
  lines_.LetGo({9, v1::STREAM_KIND_STDOUT});  // it has written nothing
}

}  // namespace
}  // namespace dtrain::shepherd
