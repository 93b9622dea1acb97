// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/log_tails.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace dtrain::status {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr v1::StreamKind kOut = v1::STREAM_KIND_STDOUT;
constexpr v1::StreamKind kErr = v1::STREAM_KIND_STDERR;

TEST(LogTailsTest, KeepsEachStreamApartByOffset) {
  LogTails logs;
  logs.SetWorldSize(2);
  logs.Append(Rank(0), kOut, "hello ");
  logs.Append(Rank(0), kOut, "world\n");
  logs.Append(Rank(0), kErr, "oops\n");
  EXPECT_EQ(logs.Read(Rank(0), kOut, 0, 100), "hello world\n");
  EXPECT_EQ(logs.Read(Rank(0), kOut, 6, 5), "world");
  EXPECT_EQ(logs.Read(Rank(0), kOut, 12, 5), "");
  EXPECT_EQ(logs.Read(Rank(0), kErr, 0, 100), "oops\n");
  EXPECT_EQ(logs.Read(Rank(1), kOut, 0, 100), "");
  EXPECT_EQ(logs.range(Rank(0), kOut).end, 12u);
}

TEST(LogTailsTest, DropsTheOldestWhenThereIsTooMuch) {
  LogTails logs;
  logs.SetWorldSize(1);
  std::string all;
  for (int i = 0; i < 3000; ++i) {
    const std::string line = std::string(1000, static_cast<char>('a' + i % 26)) + "\n";
    all += line;
    logs.Append(Rank(0), kOut, line);
  }
  const LogTails::Range range = logs.range(Rank(0), kOut);
  EXPECT_EQ(range.end, all.size());
  EXPECT_GT(range.begin, 0u);
  EXPECT_LE(range.end - range.begin, LogTails::kMostPerStream);
  EXPECT_GT(range.end - range.begin, LogTails::kMostPerStream / 2);
  EXPECT_EQ(logs.Read(Rank(0), kOut, range.begin, SIZE_MAX),
            all.substr(static_cast<size_t>(range.begin)));
  EXPECT_EQ(logs.Read(Rank(0), kOut, range.begin + 20000, 30000),
            all.substr(static_cast<size_t>(range.begin) + 20000, 30000));
}

TEST(LogTailsTest, AThousandRanksTakeNoMoreThanTheirShare) {
  LogTails logs;
  logs.SetWorldSize(100000);
  logs.Append(Rank(5), kOut, std::string(1 << 20, 'x'));
  const LogTails::Range range = logs.range(Rank(5), kOut);
  EXPECT_LE(range.end - range.begin, 2 * LogTails::kLeastPerStream);
}

TEST(LogTailsTest, AFollowerIsToldWhatComesAndTheEnd) {
  LogTails logs;
  logs.Append(Rank(0), kOut, "one");
  std::unique_ptr<http::Feed> feed = logs.Follow(Rank(0), kOut, 0);
  EXPECT_EQ(feed->Next(2), "on");
  EXPECT_EQ(feed->Next(100), "e");
  EXPECT_EQ(feed->Next(100), "");
  int woken = 0;
  feed->Notify([&] { ++woken; });
  EXPECT_EQ(woken, 0);
  logs.Append(Rank(0), kErr, "not for it");
  EXPECT_EQ(woken, 0);
  logs.Append(Rank(0), kOut, "two");
  EXPECT_EQ(woken, 1);
  EXPECT_EQ(feed->Next(100), "two");
  feed->Notify([&] { ++woken; });
  EXPECT_FALSE(feed->ended());
  logs.EndAll();
  EXPECT_EQ(woken, 2);
  EXPECT_TRUE(feed->ended());
  feed->Notify([&] { ++woken; });
  EXPECT_EQ(woken, 3);
}

TEST(LogTailsTest, TheOrderOfTheStreamsIsKept) {
  LogTails logs;
  logs.Append(Rank(0), kOut, "one\n");
  logs.Append(Rank(0), kOut, "two\n");
  logs.Append(Rank(0), kErr, "oops\n");
  logs.Append(Rank(0), kOut, "three\n");
  const std::vector<LogTails::Run> order = logs.Order(Rank(0));
  ASSERT_EQ(order.size(), 3u);
  EXPECT_EQ(order[0].stream, kOut);
  EXPECT_EQ(order[0].end, 8u);
  EXPECT_EQ(order[1].stream, kErr);
  EXPECT_EQ(order[1].end, 5u);
  EXPECT_EQ(order[2].end, 14u);
  EXPECT_TRUE(logs.Order(Rank(1)).empty());
  for (int i = 0; i < 10000; ++i) logs.Append(Rank(0), i % 2 == 0 ? kErr : kOut, "x");
  EXPECT_EQ(logs.Order(Rank(0)).size(), LogTails::kMostRuns);
}

TEST(LogTailsTest, TheUnfinishedLineIsOfTheStreamThatGrewLast) {
  LogTails logs;
  EXPECT_EQ(logs.Unfinished(Rank(0)), "");
  logs.Append(Rank(0), kErr, "loaded\n\r 10%");
  logs.Append(Rank(0), kOut, "(Pdb) ");
  EXPECT_EQ(logs.Unfinished(Rank(0)), "(Pdb)");
  logs.Append(Rank(0), kErr, "\r 20%");
  EXPECT_EQ(logs.Unfinished(Rank(0)), " 20%");
  logs.Append(Rank(0), kErr, "\n");
  EXPECT_EQ(logs.Unfinished(Rank(0)), "(Pdb)");
  logs.Append(Rank(0), kOut, std::string(100000, 'x'));
  EXPECT_EQ(logs.Unfinished(Rank(0)), std::string(4096, 'x'));
  logs.SetWorldSize(2);
  EXPECT_EQ(logs.Unfinished(Rank(0)), "") << "that was in the attempt before";
  logs.Append(Rank(0), kErr, "30%");
  EXPECT_EQ(logs.Unfinished(Rank(0)), "30%");
}

// I10
TEST(LogTailsTest, ASlowFollowerIsToldHowMuchItMissed) {
  LogTails logs;
  logs.SetWorldSize(1);
  std::unique_ptr<http::Feed> feed = logs.Follow(Rank(0), kOut, 0);
  logs.Append(Rank(0), kOut, std::string(3 << 20, 'x'));
  const uint64_t missed = logs.range(Rank(0), kOut).begin;
  EXPECT_THAT(feed->Next(1000), StartsWith("\n[dtrain: " + std::to_string(missed) +
                                           " bytes are no longer available]"));
  EXPECT_THAT(feed->Next(1000), StartsWith("xxx"));
}

TEST(LogTailsTest, FollowersMayGoAwayWhileOthersAreWoken) {
  LogTails logs;
  std::unique_ptr<http::Feed> first = logs.Follow(Rank(0), kOut, 0);
  std::unique_ptr<http::Feed> second = logs.Follow(Rank(0), kOut, 0);
  bool woken = false;
  first->Notify([&] { second.reset(); });
  second->Notify([&] { woken = true; });
  logs.Append(Rank(0), kOut, "x");
  EXPECT_FALSE(woken);
  first.reset();
  logs.Append(Rank(0), kOut, "y");
}

}  // namespace
}  // namespace dtrain::status
