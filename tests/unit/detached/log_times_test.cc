// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/log_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

namespace dtrain::detached {
namespace {

using testing::ElementsAre;

const LogStream kOut0{Rank(0), false};
const LogStream kErr0{Rank(0), true};
constexpr int64_t kSecond = 1'000'000'000;

TEST(LogTimesTest, TheStreamsOfARankAreInTheOrderInWhichTheyCame) {
  TimesWriter writer;
  std::string records;
  for (const auto& [stream, offset, when] :
       {std::tuple(kOut0, 0, 10 * kSecond), std::tuple(kErr0, 0, 10 * kSecond + 5),
        std::tuple(kOut0, 7, 10 * kSecond + 9),
        std::tuple(LogStream{Rank(1), false}, 0, kSecond)}) {
    records += writer.Note(stream, static_cast<uint64_t>(offset), when);
  }
  std::vector<std::tuple<bool, uint64_t, int64_t>> runs;
  for (const auto& run : LogTimes::Parse(records).RunsOf(Rank(0))) {
    runs.emplace_back(run.stream.is_stderr, run.begin, run.unix_nanos);
  }
  EXPECT_THAT(
      runs, ElementsAre(std::tuple(false, 0u, 10 * kSecond), std::tuple(true, 0u, 10 * kSecond + 5),
                        std::tuple(false, 7u, 10 * kSecond + 9)));
}

TEST(LogTimesTest, WithoutRecordsAllIsThereAndNoTimeIsKnown) {
  const LogTimes none = LogTimes::Parse("");
  EXPECT_TRUE(none.empty());
  const auto runs = none.RunsOf(Rank(3));
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].end, ~uint64_t{0});
  EXPECT_EQ(runs[0].unix_nanos, 0);
}

// A record that a crash has cut, and bytes that a new launcher was sent again.
TEST(LogTimesTest, AnyFileIsReadAsFarAsItCanBe) {
  TimesWriter writer;
  std::string records = writer.Note(kOut0, 100, kSecond) + writer.Note(kOut0, 200, 2 * kSecond);
  records += TimesWriter().Note(kOut0, 150, 9 * kSecond);
  records += writer.Note(kOut0, 300, 3 * kSecond) + "cut";
  const LogTimes times = LogTimes::Parse(records);
  EXPECT_EQ(times.At(kOut0, 99).unix_nanos, 0);
  EXPECT_EQ(times.At(kOut0, 100).unix_nanos, kSecond);
  EXPECT_EQ(times.At(kOut0, 250).unix_nanos, 2 * kSecond);
  EXPECT_EQ(times.At(kOut0, 250).end, 300u);
  EXPECT_EQ(times.At(kOut0, 1000).unix_nanos, 3 * kSecond);
  EXPECT_EQ(times.FirstSince(kOut0, 2 * kSecond), 200u);
  EXPECT_EQ(times.FirstSince(kOut0, 4 * kSecond), ~uint64_t{0});
}

TEST(LogTimesTest, TheyAreMadeLessOftenTheMoreThereAre) {
  TimesWriter writer;
  uint64_t bytes = 0;
  // A job that writes every 10 ms at first, and all the time for half a year.
  for (int64_t when = 0; when < int64_t{180} * 86'400 * 1'000; when += 10) {
    bytes += writer.Note(kOut0, static_cast<uint64_t>(when), when * 1'000'000).size();
    if (when > 3'600'000) when += 29'990;  // or every 30 s
  }
  EXPECT_GT(bytes, 1u << 20);
  EXPECT_LE(bytes, 9u << 20);
}

}  // namespace
}  // namespace dtrain::detached
