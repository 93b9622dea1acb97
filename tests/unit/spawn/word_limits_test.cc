// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/word_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dtrain::spawn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const TimePoint kStart = TimePoint() + std::chrono::hours(1);

std::string Repeat(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(WordLimitsTest, LinesAreWholeAndEscaped) {
  WordLimits limits;
  EXPECT_THAT(limits.Take(kStart, "a li"), IsEmpty());
  EXPECT_THAT(limits.Take(kStart, "ne\n\nE0000 x\x1b[2J\nrest"),
              ElementsAre("a line", "E0000 x\\x1b[2J"));
  EXPECT_THAT(limits.End(kStart), ElementsAre("rest"));
  EXPECT_THAT(limits.End(kStart), IsEmpty());
}

TEST(WordLimitsTest, ALongLineIsCutHoweverItCame) {
  WordLimits limits;
  for (int i = 0; i < 100; ++i) EXPECT_THAT(limits.Take(kStart, std::string(997, 'x')), IsEmpty());
  const std::vector<std::string> lines = limits.Take(kStart, "\nnext\n");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_LE(lines[0].size(), WordLimits::kMostOfLine);
  EXPECT_GT(lines[0].size(), WordLimits::kMostOfLine - 10);
  EXPECT_EQ(lines[1], "next");
  EXPECT_LE(limits.Take(kStart, std::string(5000, '\x01') + "\n")[0].size(),
            WordLimits::kMostOfLine);
}

TEST(WordLimitsTest, TwentyLinesASecondAndTheRestIsCounted) {
  WordLimits limits;
  EXPECT_EQ(limits.Take(kStart, Repeat("x\n", 1000)).size(), 20u);
  EXPECT_THAT(limits.Take(kStart + std::chrono::milliseconds(999), "y\n"), IsEmpty());
  EXPECT_THAT(limits.Take(kStart + std::chrono::seconds(1), "z\n"),
              ElementsAre("(981 lines more)", "z"));
  EXPECT_EQ(limits.Take(kStart + std::chrono::seconds(1), Repeat("x\n", 30)).size(), 19u);
  EXPECT_THAT(limits.End(kStart + std::chrono::seconds(1)), ElementsAre("(11 lines more)"));
}

TEST(WordLimitsTest, AMebibyteInAll) {
  WordLimits limits;
  const std::string lines = Repeat(std::string(500, 'x') + "\n", 20);
  size_t bytes = 0;
  for (int second = 0; second < 1000; ++second) {
    for (const std::string& line : limits.Take(kStart + std::chrono::seconds(second), lines)) {
      bytes += line.size();
    }
  }
  EXPECT_LE(bytes, WordLimits::kMostBytes);
  EXPECT_GT(bytes, WordLimits::kMostBytes - 1000);
  EXPECT_THAT(limits.End(kStart),
              ElementsAre(absl::StrCat("(", 20000 - bytes / 500, " lines more)")));
}

}  // namespace
}  // namespace dtrain::spawn
