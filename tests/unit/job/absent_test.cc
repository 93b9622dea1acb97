// SPDX-License-Identifier: Apache-2.0
// --min-nodes: a job on those of its hosts that are there.
#include "job_fixture.h"

namespace dtrain::job {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class AbsentTest : public JobFixture {
 protected:
  void MakeElastic(size_t hosts, uint32_t least) {
    options_.min_nodes = least;
    options_.plan.ranks_per_node = 2;
    Make(hosts);
  }
  void Come(uint32_t node) {
    Feed(NodeConnected{NodeId(node)});
    Welcome(node);
  }
};

TEST_F(AbsentTest, AHostThatCannotBeReachedIsLeftOut) {
  MakeElastic(3, 1);
  Come(0);
  EXPECT_TRUE(Disconnects(Closed(1, "no route to host"), 1));
  EXPECT_THAT(Warnings(), IsEmpty());  // the third may fail as well, and then it is an error
  Come(2);
  ASSERT_EQ(core_->state(), State::kProbing);
  EXPECT_THAT(Warnings(),
              ElementsAre("node1 is left out (at least 1 are needed): no route to host"));
  Probed(0);
  Probed(2);
  PortsHeld(0);
  EXPECT_EQ(PartOf(2).node_rank(), 1u);
  EXPECT_EQ(PartOf(2).node_count(), 2u);
  EXPECT_EQ(PartOf(2).world_size(), 4u);
  EXPECT_FALSE(Sends(all_, 1, v1::JobRequest::kStart));
  Started(0);
  Started(2);
  EXPECT_EQ(core_->state(), State::kRunning);
  for (uint32_t rank = 0; rank < 4; ++rank) Exit(rank, 0);
  for (const uint32_t node : {0u, 2u}) {
    Over(node);
    Drained(node);
  }
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 0);
}

TEST_F(AbsentTest, WhenTooFewAreLeftAllAreTold) {
  MakeElastic(3, 2);
  Closed(1, "no route to host");
  Closed(0, "permission denied");
  Come(2);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 200);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("2 of 3 nodes"), HasSubstr("no route to host"),
                                       HasSubstr("node0: permission denied")));
  EXPECT_THAT(Warnings(), IsEmpty());
}

TEST_F(AbsentTest, OthersHaveThirtySecondsOnceEnoughAreThere) {
  MakeElastic(3, 2);
  Come(0);
  Pass(seconds(40), {0});
  EXPECT_EQ(core_->state(), State::kConnecting);
  Come(2);
  Pass(seconds(29), {0, 2});
  EXPECT_EQ(core_->state(), State::kConnecting);
  Pass(seconds(2), {0, 2});
  EXPECT_EQ(core_->state(), State::kProbing);
  EXPECT_THAT(Warnings(),
              ElementsAre(HasSubstr("node1 is left out (at least 2 are needed): it had not joined "
                                    "30 s after enough other hosts had; it was waiting for")));
}

// One that an earlier attempt has lost is hardly there, and is not waited for.
TEST_F(AbsentTest, ALostHostHasTwoSecondsOnceAllOthersAreDecided) {
  options_.doubtful = {false, true, false, false};
  MakeElastic(4, 2);
  Come(0);
  Come(2);
  Pass(seconds(10), {0, 2});
  EXPECT_EQ(core_->state(), State::kConnecting);  // node3 may still come
  Closed(3, "no route to host");
  Pass(milliseconds(1999), {0, 2});
  EXPECT_EQ(core_->state(), State::kConnecting);
  Pass(milliseconds(2), {0, 2});
  EXPECT_EQ(core_->state(), State::kProbing);
  EXPECT_THAT(Warnings(), testing::Contains(HasSubstr("node1 is left out (at least 2 are needed): "
                                                      "it had not joined 2 s after enough")));
}

TEST_F(AbsentTest, ALostHostThatIsBackTakesPart) {
  options_.doubtful = {false, true, false};
  MakeElastic(3, 2);
  Come(0);
  Come(2);
  Pass(seconds(1), {0, 2});
  Come(1);
  EXPECT_EQ(core_->plan().nodes.size(), 3u);
}

// One that all need is waited for as ever.
TEST_F(AbsentTest, ALostHostThatIsNeededHasAllTheTime) {
  options_.doubtful = {false, true};
  MakeElastic(2, 2);
  Come(0);
  Pass(seconds(60), {0});
  EXPECT_EQ(core_->state(), State::kConnecting);
  Come(1);
  EXPECT_EQ(core_->state(), State::kProbing);
}

TEST_F(AbsentTest, TheFirstOfThoseThatAreThereTakePart) {
  options_.plan.nodes = 2;
  MakeElastic(4, 1);
  Closed(0);
  Come(1);
  Closed(2);
  Come(3);
  ASSERT_EQ(core_->plan().nodes.size(), 2u);
  EXPECT_EQ(core_->plan().nodes[0].node, NodeId(1));
  EXPECT_EQ(core_->plan().nodes[1].node, NodeId(3));
  EXPECT_EQ(core_->ranks().at(0).node, NodeId(1));
}

TEST_F(AbsentTest, OneThatHadComeIsMissed) {
  MakeElastic(3, 1);
  Come(0);
  Come(1);
  Closed(1, "reset");
  Come(2);
  ASSERT_TRUE(finished_);
  EXPECT_THAT(verdict().message, HasSubstr("node1: reset"));
}

TEST_F(AbsentTest, WhatFailsAfterItHadComeIsToldWithThoseThatNeverCame) {
  MakeElastic(4, 1);
  Come(0);
  Closed(2, "no route to host");
  Come(1);
  Closed(1, "reset");
  Pass(seconds(4), {0});
  ASSERT_TRUE(finished_);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("node1: reset"), HasSubstr("node2: no route")));
}

}  // namespace
}  // namespace dtrain::job
