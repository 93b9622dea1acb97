// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other before they are connected.
#include "runtime/cpu/card.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/bootstrap.h"

namespace dtrain::runtime {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

RankCard LeadersCard() {
  RankCard card;
  card.processors = "0110";
  card.pid = 4711;
  card.probe = UINT64_MAX;
  card.arena_fd = 5;
  card.arena_bytes = size_t{1} << 40;
  card.arena_cookie = 6;
  card.segment_fd = 7;
  card.segment_cookie = 8;
  card.endpoint = {"10.0.0.7", 65535, {'s', 'e', 'c', 'r', 'e', 't', '\0', '\n'}};
  return card;
}

TEST(CardTest, SurvivesTheTrip) {
  auto back = DecodeCard(3, EncodeCard(LeadersCard()));
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(EncodeCard(*back), EncodeCard(LeadersCard()));
  EXPECT_EQ(back->processors, "0110");
  EXPECT_EQ(back->pid, 4711);
  EXPECT_EQ(back->probe, UINT64_MAX);
  EXPECT_EQ(back->segment_fd, 7);
  EXPECT_EQ(back->endpoint.ip, "10.0.0.7");
  EXPECT_EQ(back->endpoint.port, 65535);
  EXPECT_EQ(back->endpoint.token, LeadersCard().endpoint.token);
}

TEST(CardTest, ABadOneNamesItsRank) {
  const std::string good = EncodeCard(LeadersCard());
  std::vector<std::string> bad = {
      "",           "x",           good.substr(0, good.size() - 1),
      good + "1:1", Versioned(""), "dtrain-3" + good.substr(good.find('\n'))};
  RankCard card = LeadersCard();
  card.pid = 0;  // a process group, to some calls
  bad.push_back(EncodeCard(card));
  card = LeadersCard();
  card.processors = "01x";
  bad.push_back(EncodeCard(card));
  for (const std::string& text : bad) {
    const auto back = DecodeCard(3, text);
    ASSERT_FALSE(back.ok()) << text;
    EXPECT_THAT(back.error().message, HasSubstr("rank 3"));
    EXPECT_THAT(back.error().message, Not(HasSubstr("secret"))) << "lets strangers connect";
  }
}

Contribution From(int rank, const std::string& boot, int node, const std::string& processors,
                  bool fine = true) {
  Standing standing{1, true, fine, true, {{boot, node, false, 1, processors}}};
  return {rank, EncodeStanding(standing)};
}

Standing Folded(const std::vector<Contribution>& all, int size) {
  const auto folded = FoldStandings(size)(all);
  EXPECT_TRUE(folded.ok());
  auto standing = DecodeStanding(0, *folded);
  EXPECT_TRUE(standing.ok());
  return *standing;
}

TEST(StandingTest, AllCanDoWhatEachCan) {
  const Standing standing =
      Folded({From(0, "a", 0, "1"), From(1, "a", 0, "01", false), From(2, "b", 1, "1")}, 3);
  EXPECT_TRUE(standing.attached);
  EXPECT_FALSE(standing.may_read);
  EXPECT_TRUE(standing.arenas);
  EXPECT_EQ(standing.ranks, 3);
  EXPECT_THAT(standing.machines, IsEmpty()) << "each rank sees its own node";
}

// Three nodes on two machines, in two steps: of machine a, whose nodes have 3 ranks on 2 processors
// together, no node alone has more ranks than processors.
TEST(StandingTest, AMachineThatSeveralNodesCrowdIsTold) {
  const auto fold = FoldStandings(5);
  const auto first = fold({From(0, "a", 0, "11"), From(1, "a", 0, "11")});
  const auto second = fold({From(2, "a", 1, "01")});
  const auto third = fold({From(3, "b", 2, "1"), From(4, "b", 2, "1")});
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  const Standing all = Folded({{0, *first}, {2, *second}, {3, *third}}, 5);
  ASSERT_EQ(all.machines.size(), 1u) << "b is one node, whose ranks see that by themselves";
  EXPECT_EQ(all.machines[0].boot, "a");
  EXPECT_EQ(all.machines[0].ranks, 3);
  EXPECT_TRUE(all.machines[0].several_nodes);
  EXPECT_TRUE(all.machines[0].crowded());
}

TEST(StandingTest, ABadOneNamesItsRank) {
  for (const std::string& text :
       {std::string("1:1"), std::string("1:01:11:11:1"), std::string("1:11:11:21:1"),
        std::string("1:11:11:11:11:a"), std::string("11:999999999991:11:11:1")}) {
    const auto folded = FoldStandings(2)({From(0, "a", 0, "1"), {1, text}});
    ASSERT_FALSE(folded.ok()) << text;
    EXPECT_THAT(folded.error().message, HasSubstr("what rank 1 published cannot be read"));
  }
}

TEST(OutcomeTest, TheErrorOfTheLowestRankCounts) {
  const Error third{DTRAIN_ERROR_NETWORK, "rank 3 failed"};
  const Error second{DTRAIN_ERROR_DEVICE, "rank 2\nfailed"};
  // Rank 1 passes on what rank 3 has told it.
  const Outcome outcome = FoldOutcomes(0,
                                       {{0, std::string("fine")},
                                        DecodeOutcome(1, EncodeOutcome({3, third})),
                                        DecodeOutcome(2, EncodeOutcome({2, second}))},
                                       FoldStandings(4));
  EXPECT_EQ(outcome.rank, 2);
  ASSERT_FALSE(outcome.result.ok());
  EXPECT_EQ(outcome.result.error().code, DTRAIN_ERROR_DEVICE);
  EXPECT_EQ(outcome.result.error().message, "rank 2?failed");
}

TEST(OutcomeTest, WhatIsNoneIsAnErrorThatNamesItsRank) {
  for (const char* text :
       {"", "x", "E", "E1", "E1:2", "E-1:2:x", "E1:0:x", "E1:99:x", "E1:x:x", "E3:9:"}) {
    const Outcome outcome = DecodeOutcome(5, text);
    ASSERT_FALSE(outcome.result.ok()) << text;
    EXPECT_EQ(outcome.rank, 5);
    EXPECT_THAT(outcome.result.error().message, HasSubstr("what rank 5 published"));
  }
}

}  // namespace
}  // namespace dtrain::runtime
