// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/rank_table.h"

#include <gmock/gmock.h>

#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace dtrain::rendezvous {
namespace {

using Nodes = std::vector<uint32_t>;

// What a PMI client makes of a mapping.
Nodes Expand(const std::string& text, size_t ranks) {
  std::vector<uint32_t> numbers;
  for (absl::string_view part : absl::StrSplit(text, absl::ByAnyChar("(,)"), absl::SkipEmpty())) {
    uint32_t number = 0;
    if (absl::SimpleAtoi(part, &number)) numbers.push_back(number);
  }
  Nodes nodes;
  while (nodes.size() < ranks) {
    for (size_t b = 0; b + 2 < numbers.size(); b += 3) {
      for (uint32_t n = 0; n < numbers[b + 1]; ++n) {
        for (uint32_t p = 0; p < numbers[b + 2] && nodes.size() < ranks; ++p) {
          nodes.push_back(numbers[b] + n);
        }
      }
    }
  }
  return nodes;
}

TEST(RankTableTest, GivesCrossRanksAsHorovodDoes) {
  const auto rows = MakeRankTable({0, 0, 1, 2, 2}, 3);  // a:2,b:1,c:2
  const std::vector<std::vector<uint32_t>> expected = {
      {0, 0, 2, 0, 3}, {0, 1, 2, 0, 2}, {1, 0, 1, 1, 3}, {2, 0, 2, 2, 3}, {2, 1, 2, 1, 2}};
  ASSERT_EQ(rows.size(), expected.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const RankRow& r = rows[i];
    EXPECT_EQ(r.rank, Rank(static_cast<uint32_t>(i)));
    EXPECT_EQ(
        (std::vector<uint32_t>{r.node, r.local_rank, r.local_size, r.cross_rank, r.cross_size}),
        expected[i]);
  }
}

TEST(RankTableTest, CountsLocalRanksInRankOrderWhenDealtRoundRobin) {
  const auto rows = MakeRankTable({0, 1, 0, 1}, 2);
  EXPECT_EQ(rows[2].local_rank, 1u);
  EXPECT_EQ(rows[3].cross_rank, 1u);
  EXPECT_EQ(rows[3].local_size, 2u);
}

TEST(ProcessMappingTest, WritesKnownLayouts) {
  EXPECT_EQ(ProcessMapping({}), "");
  EXPECT_EQ(ProcessMapping({0}), "(vector,(0,1,1))");
  EXPECT_EQ(ProcessMapping({0, 0, 0, 1, 1}), "(vector,(0,1,3),(1,1,2))");
  EXPECT_EQ(ProcessMapping({0, 1, 2, 3, 0, 1, 2, 3}), "(vector,(0,4,1))");
  EXPECT_EQ(ProcessMapping({0, 1, 2, 3, 0, 1, 2}), "(vector,(0,4,1))");
  Nodes two_of_eight;
  for (uint32_t r = 0; r < 16; ++r) two_of_eight.push_back(r / 8);
  EXPECT_EQ(ProcessMapping(two_of_eight), "(vector,(0,2,8))");
}

TEST(ProcessMappingTest, StaysShortForManyRanksAndIsLeftOutWhenItCannot) {
  Nodes regular;
  for (uint32_t r = 0; r < 100000; ++r) regular.push_back(r / 8);
  EXPECT_EQ(ProcessMapping(regular), "(vector,(0,12500,8))");
  Nodes irregular;
  std::mt19937 rng(3);
  for (int i = 0; i < 1000; ++i) irregular.push_back(rng() % 50);
  EXPECT_EQ(ProcessMapping(irregular), "");
}

TEST(ProcessMappingTest, AClientReadsBackThePlacement) {
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    Nodes nodes;
    const size_t ranks = 1 + rng() % 40;
    const uint32_t count = 1 + rng() % 4;
    const uint32_t run = 1 + rng() % 4;
    for (size_t r = 0; r < ranks; ++r) {
      nodes.push_back(rng() % 10 == 0 ? rng() % count : static_cast<uint32_t>(r / run) % count);
    }
    const std::string text = ProcessMapping(nodes);
    ASSERT_FALSE(text.empty());
    EXPECT_LE(text.size(), kMaxProcessMapping);
    EXPECT_EQ(Expand(text, ranks), nodes) << text;
  }
}

}  // namespace
}  // namespace dtrain::rendezvous
