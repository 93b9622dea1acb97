// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/status/log_reading.h"
#include "launcher/status/log_tails.h"

namespace dtrain::status {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kSecond = 1'000'000'000;
constexpr v1::StreamKind kToStdout = v1::STREAM_KIND_STDOUT;
constexpr v1::StreamKind kToStderr = v1::STREAM_KIND_STDERR;

// What a client makes of it, a few bytes at a time.
std::vector<std::string> FramesOf(http::Feed& feed, LogFrames& frames) {
  std::vector<std::string> found;
  std::string text;
  for (std::string piece; !(piece = feed.Next(1000)).empty();) text += piece;
  for (size_t at = 0; at < text.size(); at += 7) {
    EXPECT_TRUE(frames.Add(text.substr(at, 7), [&](const LogFrames::Frame& frame) {
      found.push_back(absl::StrCat(frame.stream.rank.value(), frame.stream.is_stderr ? "e" : "o",
                                   frame.unix_nanos / kSecond, ":", frame.bytes));
      return true;
    }));
  }
  return found;
}

TEST(LogFramesTest, AllRanksAndStreamsComeRankByRankAndThenAsTheyAreWritten) {
  LogTails logs;
  logs.SetWorldSize(2);
  logs.Append(Rank(1), kToStdout, "one\n", 5 * kSecond);
  logs.Append(Rank(0), kToStdout, "a\n", 6 * kSecond);
  logs.Append(Rank(0), kToStderr, "oops\n", 7 * kSecond);
  logs.Append(Rank(0), kToStdout, "b\n", 7 * kSecond + 1);
  logs.Append(Rank(0), kToStdout, "c\n", 9 * kSecond);
  auto feed = logs.FollowAll({{}, {}, /*follow=*/true});
  LogFrames frames;
  EXPECT_THAT(FramesOf(*feed, frames),
              ElementsAre("0o6:a\n", "0e7:oops\n", "0o7:b\n", "0o9:c\n", "1o5:one\n"));
  EXPECT_FALSE(feed->ended());
  bool woken = false;
  feed->Notify([&] { woken = true; });
  logs.Append(Rank(1), kToStderr, "two", 20 * kSecond);
  EXPECT_TRUE(woken);
  EXPECT_THAT(FramesOf(*feed, frames), ElementsAre("1e20:two"));
  logs.EndAll();
  EXPECT_TRUE(feed->ended());
}

TEST(LogFramesTest, OnlyWhatWasAskedForAndUpToNow) {
  LogTails logs;
  logs.SetWorldSize(2);
  for (const uint32_t rank : {0u, 1u}) {
    logs.Append(Rank(rank), kToStdout, "out\n", kSecond);
    logs.Append(Rank(rank), kToStderr, "err\n", kSecond);
  }
  LogFrames frames;
  auto one = logs.FollowAll({Rank(1), kToStderr, /*follow=*/false});
  logs.Append(Rank(1), kToStderr, "later\n", kSecond);
  EXPECT_THAT(FramesOf(*one, frames), ElementsAre("1e1:err\n"));
  EXPECT_TRUE(one->ended());
}

TEST(LogFramesTest, WhatIsNoAnswerOfThisKindIsRefused) {
  const auto none = [](const LogFrames::Frame&) { return true; };
  EXPECT_FALSE(LogFrames().Add("{\"error\": \"no\"}\n", none));
  EXPECT_FALSE(LogFrames().Add(std::string(1000, 'x'), none));
  EXPECT_TRUE(LogFrames().Add("0 stdout 12 100\nabc", none));
}

// Readers that have missed something learn how much.
TEST(LogFramesTest, WhatIsGoneIsTold) {
  LogTails logs;
  logs.SetWorldSize(1);
  LogFrames frames;
  logs.Append(Rank(0), kToStdout, "first\n", kSecond);
  auto feed = logs.FollowAll({{}, {}, /*follow=*/true});
  EXPECT_THAT(FramesOf(*feed, frames), ElementsAre("0o1:first\n"));
  logs.Append(Rank(0), kToStdout, std::string(2 << 20, 'x'), 2 * kSecond);
  const uint64_t begin = logs.range(Rank(0), kToStdout).begin;
  const auto found = FramesOf(*feed, frames);
  ASSERT_FALSE(found.empty());
  EXPECT_THAT(found[0], testing::HasSubstr(absl::StrCat("[dtrain: ", begin - 6,
                                                        " bytes are no longer available]\n")));
}

}  // namespace
}  // namespace dtrain::status
