// SPDX-License-Identifier: Apache-2.0
// The key-value server of the ranks, on rank 0's node.
#include "job_fixture.h"

namespace dtrain::job {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class MeetingTest : public JobFixture {
 protected:
  v1::JobPart PartOf(uint32_t node) {
    for (const v1::JobRequest& request : JobSentTo(node)) {
      if (request.has_start()) return request.start();
    }
    ADD_FAILURE() << "no start";
    return {};
  }
};

TEST_F(MeetingTest, ItsPortListensBeforeAnythingStartsAndAllNodesAreTold) {
  Make(2);
  RunUntil(State::kHolding);
  for (const v1::SessionRequest& request : SentTo(0)) {
    if (!request.has_hold_ports()) continue;
    EXPECT_EQ(request.hold_ports().count(), 3u);
    EXPECT_EQ(request.hold_ports().listening(), 1u);
  }
  PortsHeld(0, {5001, 5002, 5003});
  EXPECT_EQ(PartOf(0).network().rendezvous_port(), 5003u);
  EXPECT_EQ(PartOf(1).network().rendezvous_port(), 5003u);
}

// PyTorch's store is at the port that all know as MASTER_PORT, which then listens, too.
TEST_F(MeetingTest, AStoreOfTheAgentsListensAtTheMasterPort) {
  options_.part.set_agent_store(true);
  Make(2);
  RunUntil(State::kHolding);
  for (const v1::SessionRequest& request : SentTo(0)) {
    if (!request.has_hold_ports()) continue;
    EXPECT_EQ(request.hold_ports().listening(), 2u);
  }
  PortsHeld(0, {5001, 5002, 5003});
  for (const uint32_t node : {0u, 1u}) {
    EXPECT_TRUE(PartOf(node).agent_store());
    EXPECT_EQ(PartOf(node).network().master_port(), 5002u);  // one of the last two
  }
  EXPECT_TRUE(PartOf(0).has_meeting());
}

TEST_F(MeetingTest, TheServersNodeKnowsWhoMayCome) {
  Make(3);
  RunUntil(State::kRunning);
  const v1::Meeting meeting = PartOf(0).meeting();
  ASSERT_EQ(meeting.nodes_size(), 3);
  EXPECT_EQ(meeting.nodes(0).host(), "node0");
  EXPECT_EQ(meeting.nodes(1).ranks(), 2u);
  EXPECT_THAT(meeting.nodes(0).addresses(), IsEmpty());  // its own
  EXPECT_THAT(meeting.nodes(2).addresses(), ElementsAre("10.0.0.3"));
  EXPECT_FALSE(PartOf(1).has_meeting());
}

TEST_F(MeetingTest, TheServerOfAnElasticHostKnowsItsRanks) {
  v1::ElasticPart& elastic = *options_.part.mutable_elastic();
  elastic.set_first_number(7);
  elastic.add_seats()->set_rank(4);
  elastic.add_seats()->set_rank(5);
  Make(1);
  RunUntil(State::kRunning);
  const v1::JobPart part = PartOf(0);
  EXPECT_EQ(part.meeting().elastic().host(), "node0");
  EXPECT_EQ(part.meeting().elastic().slots(), 2u);
  EXPECT_EQ(part.elastic().seats(1).rank(), 5u);
  EXPECT_EQ(part.network().master_address(), part.network().address());
  options_.part.clear_elastic();
  all_.clear();
  Make(1);
  RunUntil(State::kRunning);
  EXPECT_FALSE(PartOf(0).meeting().has_elastic());
}

// Its ranks may have ended before those of others, which it goes on serving.
TEST_F(MeetingTest, TheServersNodeIsToldThatAllIsOver) {
  Make(2);
  RunUntil(State::kRunning);
  for (const uint32_t rank : {0u, 1u, 2u}) {
    EXPECT_FALSE(Sends(Exit(rank, 0), 0, v1::JobRequest::kStop));
  }
  const auto last = Exit(3, 0);
  EXPECT_TRUE(Sends(last, 0, v1::JobRequest::kStop));
  EXPECT_FALSE(Sends(last, 1, v1::JobRequest::kStop));
  EndAll();
  EXPECT_EQ(verdict().exit_code, 0);
}

TEST_F(MeetingTest, ANodeThatHasFinishedIsToldNothing) {
  Make(2);
  RunUntil(State::kRunning);
  for (const uint32_t rank : {0u, 1u, 2u}) Exit(rank, 0);
  Over(0);
  EXPECT_FALSE(Sends(Exit(3, 0), 0, v1::JobRequest::kStop));
}

TEST_F(MeetingTest, TensorflowsRanksHavePortsOfTheirOwn) {
  options_.plan.tensorflow = {{"chief", 1}, {"worker", std::nullopt}};
  options_.part.add_contracts(v1::CONTRACT_TENSORFLOW);
  Make(2);
  RunUntil(State::kHolding);
  EXPECT_EQ(SentTo(1).back().hold_ports().count(), 2u);
  EXPECT_EQ(SentTo(1).back().hold_ports().listening(), 0u);
  PortsHeld(1, {6001, 6002});
  EXPECT_EQ(core_->state(), State::kHolding);
  PortsHeld(0, {5001, 5002, 7001, 7002, 5003});
  EXPECT_EQ(PartOf(1).network().master_port(), 5001u);
  EXPECT_EQ(PartOf(1).network().rendezvous_port(), 5003u);
  EXPECT_EQ(PartOf(0).whole().tensorflow_cluster(),
            "{\"chief\": [\"10.0.0.1:7001\"], \"worker\": [\"10.0.0.1:7002\", "
            "\"10.0.0.2:6001\", \"10.0.0.2:6002\"]}");
  EXPECT_EQ(PartOf(1).workers(1).tensorflow_type(), "worker");
  EXPECT_EQ(PartOf(1).workers(1).tensorflow_index(), 2u);
}

TEST_F(MeetingTest, TheWholeJobIsToldWhereItIsAskedFor) {
  Make(2);
  RunUntil(State::kRunning);
  EXPECT_FALSE(PartOf(0).has_whole());
  options_.part.add_contracts(v1::CONTRACT_SLURM);
  all_.clear();
  Make(2);
  RunUntil(State::kRunning);
  EXPECT_THAT(PartOf(1).whole().hosts(), ElementsAre("node0", "node1"));
  EXPECT_THAT(PartOf(1).whole().ranks(), ElementsAre(2, 2));
}

TEST_F(MeetingTest, TorchrunsOnNodesServeTheStoreThemselves) {
  options_.part.add_contracts(v1::CONTRACT_TORCHRUN_AGENT);
  options_.part.set_agent_store(true);
  options_.plan.ranks_per_node = 1;
  Make(2);
  ConnectAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 2);
  EXPECT_THAT(verdict().message, testing::HasSubstr("--agent-store and --contract torchrun-agent"));
}

TEST_F(MeetingTest, TorchrunsOnNodesAreOneEach) {
  options_.part.add_contracts(v1::CONTRACT_TORCHRUN_AGENT);
  Make(2);
  ConnectAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 2);
  EXPECT_THAT(verdict().message, testing::HasSubstr("node0 would run 2 ranks: use --ppn 1"));
}

// A rank's word that its connection to the store has ended may be faster.
TEST_F(MeetingTest, AServerThatHasDiedIsWhyARankFailedAMomentBefore) {
  Make(2);
  RunUntil(State::kRunning);
  Exit(2, 1);
  now_ += std::chrono::milliseconds(900);
  Failure(0, v1::NodeFailure::KIND_HELPER, 203, "PyTorch's store was killed by signal 9");
  EndAll();
  EXPECT_EQ(verdict().exit_code, 203);
  EXPECT_THAT(verdict().message,
              testing::HasSubstr("PyTorch's store was killed by signal 9; rank 2 on "
                                 "node1 failed after that, with exit code 1"));
}

TEST_F(MeetingTest, AServerThatDiesLaterIsNot) {
  Make(2);
  RunUntil(State::kRunning);
  Exit(2, 1);
  now_ += std::chrono::seconds(2);
  Failure(0, v1::NodeFailure::KIND_HELPER, 203, "PyTorch's store was killed by signal 9");
  EndAll();
  EXPECT_EQ(verdict().exit_code, 1);
}

}  // namespace
}  // namespace dtrain::job
