// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/pmix_core.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <utility>

namespace dtrain::rendezvous {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int32_t kNotFound = -46, kLost = -61;

// Ranks 0 and 1 on node 0, 2 on node 1, 3 to 5 on node 2.
v1::PmixJob SixRanks() {
  v1::PmixJob job;
  job.set_universe_size(8);
  const std::vector<std::vector<uint32_t>> nodes = {{0, 1}, {2}, {3, 4, 5}};
  for (const auto& ranks : nodes) {
    v1::PmixNode& node = *job.add_nodes();
    node.set_host("host" + std::to_string(job.nodes_size()));
    node.mutable_ranks()->Add(ranks.begin(), ranks.end());
  }
  return job;
}

v1::PmixUp FenceOf(std::vector<uint32_t> ranks, std::string data, int32_t status = 0) {
  v1::PmixUp up;
  up.mutable_fence()->mutable_ranks()->Add(ranks.begin(), ranks.end());
  up.mutable_fence()->set_data(std::move(data));
  up.mutable_fence()->set_status(status);
  return up;
}

v1::PmixUp WantedOf(uint64_t id, uint32_t rank) {
  v1::PmixUp up;
  up.mutable_wanted()->set_id(id);
  up.mutable_wanted()->set_rank(rank);
  return up;
}

v1::PmixUp FoundOf(uint64_t id, std::string data, int32_t status = 0) {
  v1::PmixUp up;
  up.mutable_found()->set_id(id);
  up.mutable_found()->set_status(status);
  up.mutable_found()->set_data(std::move(data));
  return up;
}

v1::PmixUp JoinedOf(std::vector<uint32_t> ranks) {
  v1::PmixUp up;
  up.mutable_joined()->mutable_ranks()->Add(ranks.begin(), ranks.end());
  return up;
}

v1::PmixUp LeftOf(std::vector<uint32_t> ranks) {
  v1::PmixUp up;
  up.mutable_left()->mutable_ranks()->Add(ranks.begin(), ranks.end());
  return up;
}

class PmixCoreTest : public testing::Test {
 protected:
  std::vector<PmixCore::Send> Say(size_t node, v1::PmixUp up) {
    auto sends = core_.OnUp(node, std::move(up));
    EXPECT_TRUE(sends.ok()) << sends.status();
    return sends.ok() ? *std::move(sends) : std::vector<PmixCore::Send>();
  }
  std::string Refused(size_t node, v1::PmixUp up) {
    auto sends = core_.OnUp(node, std::move(up));
    EXPECT_FALSE(sends.ok());
    return std::string(sends.status().message());
  }
  PmixCore core_{SixRanks()};
};

TEST_F(PmixCoreTest, WhoAsksIsToldTheJob) {
  v1::PmixUp ask;
  ask.mutable_ask();
  const auto sends = Say(1, ask);
  ASSERT_THAT(sends, SizeIs(1));
  EXPECT_THAT(sends[0].nodes, ElementsAre(1));
  EXPECT_EQ(sends[0].down.job().SerializeAsString(), SixRanks().SerializeAsString());
}

TEST_F(PmixCoreTest, AFenceOfAllEndsWithTheLastNodeAndBringsAllDataInTheNodesOrder) {
  EXPECT_THAT(Say(2, FenceOf({}, "c")), IsEmpty());
  EXPECT_TRUE(core_.in_progress());
  EXPECT_FALSE(core_.is_awaited(2));
  EXPECT_TRUE(core_.is_awaited(1));
  EXPECT_THAT(Say(0, FenceOf({}, "a")), IsEmpty());
  const auto sends = Say(1, FenceOf({}, "b"));
  ASSERT_THAT(sends, SizeIs(1));
  EXPECT_THAT(sends[0].nodes, ElementsAre(0, 1, 2));
  EXPECT_EQ(sends[0].down.fence_done().data(), "abc");
  EXPECT_EQ(sends[0].down.fence_done().status(), 0);
  EXPECT_FALSE(core_.in_progress());
  EXPECT_THAT(Say(1, FenceOf({}, "next")), IsEmpty());  // the same ranks again
}

TEST_F(PmixCoreTest, AFenceOfSomeRanksWaitsForTheirNodesOnlyWhileOthersGoOn) {
  EXPECT_THAT(Say(0, FenceOf({1, 2}, "a")), IsEmpty());
  EXPECT_THAT(Say(0, FenceOf({}, "")), IsEmpty());
  EXPECT_FALSE(core_.is_awaited(0));
  const auto sends = Say(1, FenceOf({1, 2}, "b"));
  ASSERT_THAT(sends, SizeIs(1));
  EXPECT_THAT(sends[0].nodes, ElementsAre(0, 1));
  EXPECT_THAT(sends[0].down.fence_done().ranks(), ElementsAre(1, 2));
  EXPECT_EQ(sends[0].down.fence_done().data(), "ab");
  EXPECT_TRUE(core_.in_progress());
}

TEST_F(PmixCoreTest, AFenceOfOneNodeIsAnsweredAtOnce) {
  const auto sends = Say(2, FenceOf({3, 5}, "x"));
  ASSERT_THAT(sends, SizeIs(1));
  EXPECT_THAT(sends[0].nodes, ElementsAre(2));
}

TEST_F(PmixCoreTest, TheStatusOfANodeIsEverybodys) {
  Say(0, FenceOf({}, "", -3));
  Say(1, FenceOf({}, ""));
  EXPECT_EQ(Say(2, FenceOf({}, ""))[0].down.fence_done().status(), -3);
}

TEST_F(PmixCoreTest, ANodeThatFinishesTearsTheFencesThatWaitForIt) {
  Say(0, FenceOf({}, "a"));
  Say(0, FenceOf({0, 2}, "b"));
  const auto sends = core_.NodeFinished(2);
  ASSERT_THAT(sends, SizeIs(1));
  EXPECT_THAT(sends[0].nodes, ElementsAre(0));
  EXPECT_EQ(sends[0].down.fence_done().status(), kLost);
  // One that is entered later is told at once.
  const auto late = Say(1, FenceOf({}, ""));
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_THAT(late[0].nodes, ElementsAre(1));
  EXPECT_EQ(late[0].down.fence_done().status(), kLost);
  EXPECT_TRUE(core_.in_progress());  // that of 0 and 2
  EXPECT_THAT(core_.NodeFinished(2), IsEmpty());
}

TEST_F(PmixCoreTest, FencesThatAServerMustNotEnter) {
  EXPECT_THAT(Refused(0, FenceOf({6}, "")), HasSubstr("rank 6"));
  EXPECT_THAT(Refused(0, FenceOf({2, 3}, "")), HasSubstr("without a rank of its own"));
  EXPECT_THAT(Refused(0, FenceOf({1, 0}, "")), HasSubstr("invalid list of ranks"));
  EXPECT_THAT(Refused(0, FenceOf({0, 0}, "")), HasSubstr("invalid list of ranks"));
  EXPECT_THAT(Refused(0, FenceOf({0, 1, 2, 3, 4, 5}, "")), HasSubstr("invalid list of ranks"));
  Say(0, FenceOf({}, ""));
  EXPECT_THAT(Refused(0, FenceOf({}, "")), HasSubstr("in already"));
  Say(0, FenceOf({0, 2}, ""));
  EXPECT_THAT(Refused(2, FenceOf({0, 2}, "")), HasSubstr("not a part of"));
  core_.NodeFinished(0);
  EXPECT_THAT(Refused(0, FenceOf({0, 3}, "")), HasSubstr("had all ended"));
  EXPECT_THAT(Refused(1, v1::PmixUp()), HasSubstr("unknown kind"));
}

TEST_F(PmixCoreTest, WhatARankHasPutIsFetchedFromItsNode) {
  const auto asked = Say(0, WantedOf(7, 4));
  ASSERT_THAT(asked, SizeIs(1));
  EXPECT_THAT(asked[0].nodes, ElementsAre(2));
  EXPECT_EQ(asked[0].down.wanted().rank(), 4u);
  const auto also = Say(1, WantedOf(7, 4));  // numbers are each node's own
  const uint64_t first = asked[0].down.wanted().id(), second = also[0].down.wanted().id();
  ASSERT_NE(first, second);
  const auto found = Say(2, FoundOf(second, "data", -1));
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].nodes, ElementsAre(1));
  EXPECT_EQ(found[0].down.found().id(), 7u);
  EXPECT_EQ(found[0].down.found().data(), "data");
  EXPECT_EQ(found[0].down.found().status(), -1);
  EXPECT_THAT(Refused(2, FoundOf(second, "")), HasSubstr("never made"));
  EXPECT_THAT(Refused(1, FoundOf(first, "")), HasSubstr("never made"));
  EXPECT_THAT(Say(2, FoundOf(first, "x")), SizeIs(1));
}

TEST_F(PmixCoreTest, WhatNobodyCanAnswerIsNotFound) {
  EXPECT_EQ(Say(0, WantedOf(1, 1))[0].down.found().status(), kNotFound);  // its own rank
  const uint64_t id = Say(0, WantedOf(2, 3))[0].down.wanted().id();
  const auto gone = core_.NodeFinished(2);
  ASSERT_THAT(gone, SizeIs(1));
  EXPECT_THAT(gone[0].nodes, ElementsAre(0));
  EXPECT_EQ(gone[0].down.found().id(), 2u);
  EXPECT_EQ(gone[0].down.found().status(), kNotFound);
  EXPECT_THAT(Refused(2, FoundOf(id, "late")), HasSubstr("had all ended"));
  EXPECT_EQ(Say(0, WantedOf(3, 5))[0].down.found().status(), kNotFound);
  EXPECT_THAT(Refused(0, WantedOf(4, 6)), HasSubstr("rank 6"));
}

TEST_F(PmixCoreTest, AnAnswerForANodeThatHasFinishedIsDropped) {
  const uint64_t id = Say(0, WantedOf(1, 3))[0].down.wanted().id();
  core_.NodeFinished(0);
  EXPECT_THAT(Say(2, FoundOf(id, "x")), IsEmpty());
}

TEST_F(PmixCoreTest, ANodeCannotAskWithoutEnd) {
  std::string refused;
  for (uint64_t id = 0; id < 100'000 && refused.empty(); ++id) {
    auto sends = core_.OnUp(0, WantedOf(id, 2));
    if (!sends.ok()) refused = std::string(sends.status().message());
  }
  EXPECT_THAT(refused, HasSubstr("times at once"));
  EXPECT_THAT(Say(2, WantedOf(1, 2)), SizeIs(1));  // the others can
}

TEST_F(PmixCoreTest, RanksAreCountedOnce) {
  Say(0, JoinedOf({0, 1}));
  Say(0, JoinedOf({1}));
  EXPECT_EQ(core_.joined(), 2u);
  EXPECT_TRUE(core_.has_joined(1));
  EXPECT_FALSE(core_.has_joined(2));
  Say(0, LeftOf({1}));
  EXPECT_TRUE(core_.has_left(1));
  EXPECT_TRUE(core_.has_joined(1));
  Say(0, JoinedOf({1}));  // again
  EXPECT_FALSE(core_.has_left(1));
  EXPECT_THAT(Refused(0, JoinedOf({2})), HasSubstr("speaks for rank 2"));
  EXPECT_THAT(Refused(1, LeftOf({77})), HasSubstr("speaks for rank 77"));
  EXPECT_EQ(core_.joined(), 2u);
}

// Whatever servers say, every fence that all its nodes enter ends once, for those nodes.
TEST(PmixCoreFuzzTest, FencesOfRandomGroupsEndOnceForTheirNodes) {
  std::mt19937 random(7);
  PmixCore core(SixRanks());
  const std::vector<size_t> node_of = {0, 0, 1, 2, 2, 2};
  for (int round = 0; round < 500; ++round) {
    std::vector<uint32_t> ranks;
    std::vector<size_t> nodes;
    for (uint32_t rank = 0; rank < 6; ++rank) {
      if (random() % 2 == 0) continue;
      ranks.push_back(rank);
      if (nodes.empty() || nodes.back() != node_of[rank]) nodes.push_back(node_of[rank]);
    }
    if (ranks.empty() || ranks.size() == 6) {
      ranks.clear();
      nodes = {0, 1, 2};
    }
    std::vector<size_t> order = nodes;
    std::shuffle(order.begin(), order.end(), random);
    for (size_t i = 0; i < order.size(); ++i) {
      auto sends = core.OnUp(order[i], FenceOf(ranks, "."));
      ASSERT_TRUE(sends.ok()) << sends.status();
      ASSERT_EQ(sends->size(), i + 1 == order.size() ? 1u : 0u);
      if (sends->empty()) continue;
      EXPECT_EQ((*sends)[0].nodes, nodes);
      EXPECT_EQ((*sends)[0].down.fence_done().data(), std::string(nodes.size(), '.'));
    }
    EXPECT_FALSE(core.in_progress());
  }
}

}  // namespace
}  // namespace dtrain::rendezvous
