// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "runtime/allreduce/element.h"
#include "runtime/allreduce/pattern.h"
#include "runtime/allreduce/room.h"
#include "runtime/allreduce/rounds.h"

// The parts of the program dtrain-allreduce.
namespace dtrain::allreduce {
namespace {

TEST(ElementTest, HalvesRoundToTheNearestAndTiesToEven) {
  EXPECT_EQ(Element<Float16>::From(0).bits, 0);
  EXPECT_EQ(Element<Float16>::From(1).bits, 0x3c00);
  EXPECT_EQ(Element<Float16>::From(-2).bits, 0xc000);
  EXPECT_EQ(Element<Float16>::From(1.0 / 3).bits, 0x3555);
  EXPECT_EQ(Element<Float16>::From(2049).bits, Element<Float16>::From(2048).bits);
  EXPECT_EQ(Element<Float16>::From(2051).bits, Element<Float16>::From(2052).bits);
  EXPECT_EQ(Element<Float16>::From(65504).bits, Element<Float16>::Largest().bits);
  EXPECT_EQ(Element<Bfloat16>::From(1).bits, 0x3f80);
  EXPECT_EQ(Element<Bfloat16>::From(-2).bits, 0xc000);
  EXPECT_EQ(Element<Bfloat16>::From(257).bits, Element<Bfloat16>::From(256).bits);
  EXPECT_EQ(Element<Bfloat16>::From(259).bits, Element<Bfloat16>::From(260).bits);
}

TEST(ElementTest, SmallNumbersComeBackAsTheyWere) {
  for (int i = -256; i <= 256; ++i) {
    EXPECT_EQ(Element<Float16>::ToDouble(Element<Float16>::From(i)), i);
    EXPECT_EQ(Element<Bfloat16>::ToDouble(Element<Bfloat16>::From(i)), i);
    EXPECT_EQ(Element<float>::ToDouble(Element<float>::From(i)), i);
  }
}

TEST(PatternTest, KnowsWhatOtherRanksHave) {
  for (const dtrain_op op : {DTRAIN_SUM, DTRAIN_PROD}) {
    const Pattern<Bfloat16> mine(1, 3, op);
    const Pattern<Bfloat16> theirs(2, 3, op);
    for (size_t i = 0; i < 50; ++i) EXPECT_EQ(mine.input(2, i), theirs.input(2, i));
  }
}

TEST(PatternTest, BlocksAreCheckedFromWhereTheyBegin) {
  const Pattern<int32_t> pattern(0, 4, DTRAIN_SUM);
  std::vector<int32_t> block(30);
  for (size_t i = 0; i < block.size(); ++i) block[i] = pattern.expected(i + 7);
  size_t first = 0;
  EXPECT_EQ(pattern.CountWrong(block.data(), block.size(), first, 7), 0u);
  EXPECT_GT(pattern.CountWrong(block.data(), block.size(), first, 8), 0u);
  for (size_t i = 0; i < block.size(); ++i) block[i] = pattern.input(3, i + 7);
  EXPECT_EQ(pattern.CountWrongCopy(block.data(), block.size(), 3, first, 7), 0u);
  EXPECT_GT(pattern.CountWrongCopy(block.data(), block.size(), 2, first, 7), 0u);
}

TEST(RoundsTest, EveryPairComesOnceAndNoRankTwiceInARound) {
  for (const int ranks : {0, 1, 2, 3, 16, 17, 18, 33, 64}) {
    std::set<std::pair<int, int>> seen;
    for (const auto& round : Rounds(ranks)) {
      std::set<int> busy;
      for (const auto& [a, b] : round) {
        EXPECT_LT(a, b);
        EXPECT_LT(b, ranks);
        EXPECT_TRUE(seen.emplace(a, b).second) << a << " " << b << " of " << ranks;
        EXPECT_TRUE(busy.insert(a).second && busy.insert(b).second);
      }
      EXPECT_TRUE(ranks > kMostOneByOne || round.size() == 1);
    }
    EXPECT_EQ(seen.size(), static_cast<size_t>(ranks * (ranks - 1) / 2));
    EXPECT_TRUE(ranks <= kMostOneByOne || Rounds(ranks).size() <= static_cast<size_t>(ranks));
  }
}

TEST(RoomTest, MemoryIsReadAndShared) {
  EXPECT_EQ(AvailableBytes("MemTotal:  9 kB\nMemAvailable:   1024 kB\nBuffers: 7 kB\n"),
            size_t{1} << 20);
  EXPECT_EQ(AvailableBytes("MemTotal: 9 kB\n"), SIZE_MAX);
  EXPECT_EQ(AvailableBytes("MemAvailable:"), SIZE_MAX);
  EXPECT_EQ(RoomPerRank(size_t{8} << 30, 2), size_t{7} << 29);
}

TEST(RoomTest, SizesThatDoNotFitAreTakenOutAndNamed) {
  Options options;
  std::vector<size_t> sizes = {4, 1000, 1 << 20};
  EXPECT_EQ(LeaveOutTooLarge(options, 4, 4, size_t{2} << 20, sizes), "");
  EXPECT_EQ(sizes.size(), 3u);
  const std::string trouble = LeaveOutTooLarge(options, 4, 4, 2000, sizes);
  EXPECT_EQ(sizes, (std::vector<size_t>{4, 1000}));
  EXPECT_NE(trouble.find("1048576 bytes"), std::string::npos) << trouble;
}

TEST(RoomTest, AKindNeedsItsBuffers) {
  Options options;
  EXPECT_EQ(Needed(options, 1000, 4, 4), 2000u);
  options.in_place = true;
  EXPECT_EQ(Needed(options, 1000, 4, 4), 1000u);
  options.in_place = false;
  options.kind = Kind::kBroadcast;
  EXPECT_EQ(Needed(options, 1000, 4, 4), 1000u);
  options.kind = Kind::kAllgather;
  EXPECT_EQ(Needed(options, 1600, 4, 4), 2000u);
}

}  // namespace
}  // namespace dtrain::allreduce
