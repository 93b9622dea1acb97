// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using testing::HasSubstr;
using Kind = v1::SessionRequest::KindCase;

class HappyPathTest : public JobFixture {};

TEST_F(HappyPathTest, SaysHelloWithAllTheAgentNeedsOnceConnected) {
  options_.lease = seconds(15);
  options_.grace = seconds(3);
  Make(1);
  Feed(NodeConnected{NodeId(0)});
  const std::vector<v1::SessionRequest> sent = SentTo(0);
  ASSERT_EQ(sent.size(), 1u);
  const v1::Hello& hello = sent[0].hello();
  EXPECT_EQ(hello.protocol(), 1u);
  EXPECT_EQ(hello.build(), "b1");
  EXPECT_EQ(hello.job_id(), "j1");
  EXPECT_EQ(hello.incarnation(), std::string(16, 'i'));
  EXPECT_EQ(hello.lease_ms(), 15000u);
  EXPECT_EQ(hello.grace_ms(), 3000u);
  EXPECT_EQ(hello.probe_token(), std::string(32, 't'));
}

TEST_F(HappyPathTest, NothingStartsBeforeTheLastNodeHasReported) {
  Make(3);
  for (uint32_t i = 0; i < 3; ++i) Feed(NodeConnected{NodeId(i)});
  Welcome(0);
  Welcome(2);
  EXPECT_EQ(core_->state(), State::kConnecting);
  EXPECT_EQ(core_->nodes()[1].waiting_for, "its inventory");
  Welcome(1);
  EXPECT_EQ(core_->state(), State::kProbing);
}

TEST_F(HappyPathTest, GoesThroughAllStatesAndFinishesOnce) {
  Make(2);
  ConnectAll();
  EXPECT_EQ(core_->state(), State::kProbing);
  EXPECT_EQ(core_->plan().world_size, 4u);
  ProbeAll();
  EXPECT_EQ(core_->state(), State::kHolding);
  EXPECT_TRUE(Sends(all_, 0, Kind::kHoldPorts));
  EXPECT_FALSE(Sends(all_, 1, Kind::kHoldPorts));
  PortsHeld(0);
  EXPECT_EQ(core_->state(), State::kStarting);
  Started(0);
  EXPECT_EQ(core_->state(), State::kStarting);
  Started(1);
  EXPECT_EQ(core_->state(), State::kRunning);
  for (uint32_t rank = 0; rank < 4; ++rank) Exit(rank, 0);
  EXPECT_EQ(core_->state(), State::kStopping);
  EXPECT_FALSE(Sends(all_, 1, v1::JobRequest::kStop));
  Over(0);
  Over(1);
  Drained(1);
  EXPECT_FALSE(finished_);
  const auto last = Drained(0);
  EXPECT_TRUE(Sends(last, 0, Kind::kGoodbye));
  EXPECT_TRUE(Disconnects(last, 0));
  EXPECT_TRUE(finished_);
  EXPECT_EQ(core_->state(), State::kFinished);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kSuccess);
  EXPECT_EQ(verdict().exit_code, 0);
  EXPECT_EQ(core_->NextDeadline(), kNever);
  ASSERT_EQ(core_->phases().size(), 7u);
  EXPECT_EQ(core_->phases().front().state, State::kConnecting);
  EXPECT_EQ(core_->phases().back().state, State::kFinished);
}

TEST_F(HappyPathTest, EveryNodeGetsItsPart) {
  options_.part.add_programs()->add_argv("prog");
  options_.stdin_rank = "1";
  Make(2);
  RunUntil(State::kStarting);
  const v1::JobPart part = PartOf(1);
  EXPECT_EQ(part.job_id(), "j1");
  EXPECT_EQ(part.programs(0).argv(0), "prog");
  EXPECT_EQ(part.node_rank(), 1u);
  EXPECT_EQ(part.node_count(), 2u);
  EXPECT_EQ(part.world_size(), 4u);
  EXPECT_EQ(part.universe_size(), 4u);
  EXPECT_EQ(part.host(), "node1");
  EXPECT_EQ(part.process_mapping(), "(vector,(0,2,2))");
  EXPECT_EQ(part.network().address(), "10.0.0.2");
  EXPECT_EQ(part.network().interface_name(), "eth0");
  EXPECT_EQ(part.network().master_address(), "10.0.0.1");
  EXPECT_EQ(part.network().master_port(), 5001u);
  EXPECT_EQ(part.network().coordinator_port(), 5002u);
  EXPECT_FALSE(part.agent_store());
  ASSERT_EQ(part.workers().size(), 2);
  EXPECT_EQ(part.workers(0).rank(), 2u);
  EXPECT_EQ(part.workers(0).stdin_mode(), v1::STDIN_MODE_NULL);
  EXPECT_EQ(PartOf(0).workers(0).stdin_mode(), v1::STDIN_MODE_NULL);
  EXPECT_EQ(PartOf(0).workers(1).stdin_mode(), v1::STDIN_MODE_PIPE);
  int opened = 0;
  for (const Action& action : all_) opened += std::holds_alternative<OpenLogs>(action);
  EXPECT_EQ(opened, 2);
}

TEST_F(HappyPathTest, OneNodeNeedsNoProof) {
  Make(1);
  ConnectAll();
  EXPECT_EQ(core_->state(), State::kHolding);
  PortsHeld(0);
  EXPECT_EQ(PartOf(0).network().master_address(), "127.0.0.1");
  EXPECT_EQ(PartOf(0).network().interface_name(), "lo");
}

TEST_F(HappyPathTest, DryRunStopsAfterThePlan) {
  options_.dry_run = true;
  Make(2);
  ConnectAll();
  EXPECT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kSuccess);
  EXPECT_EQ(core_->plan().world_size, 4u);
  EXPECT_TRUE(Sends(all_, 1, Kind::kGoodbye));
  EXPECT_FALSE(Sends(all_, 0, Kind::kProbe));
}

TEST_F(HappyPathTest, NodesWithoutARankAreLetGo) {
  options_.plan.ranks = 2;
  Make(2);
  ConnectAll();
  EXPECT_TRUE(Sends(all_, 1, Kind::kGoodbye));
  EXPECT_TRUE(Disconnects(all_, 1));
  PortsHeld(0);
  EXPECT_EQ(PartOf(0).node_count(), 1u);
  Closed(1);  // its connection ends; nobody minds
  EXPECT_EQ(core_->state(), State::kStarting);
}

TEST_F(HappyPathTest, ANodeThatIsDoneEarlyIsLetGoEarly) {
  Make(2);
  RunUntil(State::kRunning);
  Exit(2, 0);
  Exit(3, 0);
  Over(1);
  EXPECT_TRUE(Disconnects(Drained(1), 1));
  EXPECT_EQ(core_->state(), State::kRunning);
  Exit(0, 0);
  Exit(1, 0);
  Over(0);
  Drained(0);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kSuccess);
}

TEST_F(HappyPathTest, AShortJobMayEndOnOneNodeBeforeItBeganOnAnother) {
  Make(2);
  RunUntil(State::kStarting);
  Started(0);
  Exit(0, 0);
  Exit(1, 0);
  Over(0);
  Drained(0);
  EXPECT_EQ(core_->state(), State::kStarting);
  Exit(2, 0);
  Exit(3, 0);
  Started(1);
  EXPECT_EQ(core_->state(), State::kStopping);
  Over(1);
  Drained(1);
  EXPECT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kSuccess);
}

TEST_F(HappyPathTest, BothSidesHearABeatFiveTimesALease) {
  options_.lease = seconds(10);
  Make(1);
  RunUntil(State::kRunning);
  all_.clear();
  Pass(seconds(10), {0});
  int beats = 0;
  for (const Action& action : all_) beats += std::holds_alternative<job::Beat>(action) ? 1 : 0;
  EXPECT_EQ(beats, 5);
}

TEST_F(HappyPathTest, AFenceIsReleasedToAllWhenAllHaveEntered) {
  Make(2);
  RunUntil(State::kRunning);
  EXPECT_TRUE(Fence(1, 0, "b").empty());
  const auto actions = Fence(0, 0, "a");
  for (uint32_t node : {0, 1}) {
    const auto sent = JobSentTo(node, actions);
    ASSERT_EQ(sent.size(), 1u);
    ASSERT_EQ(sent[0].fence_release().entries().size(), 2);
    EXPECT_EQ(sent[0].fence_release().entries(0).key(), "a");
  }
}

TEST_F(HappyPathTest, WarningsOfManyNodesAreToldOnce) {
  Make(3);
  for (uint32_t i = 0; i < 3; ++i) {
    Feed(NodeConnected{NodeId(i)});
    v1::Inventory inventory = Inventory(i);
    inventory.add_warnings("no cgroup");
    Welcome(i, inventory);
  }
  EXPECT_THAT(Warnings(), testing::ElementsAre("node0, node1, node2: no cgroup"));
}

}  // namespace
}  // namespace dtrain::job
