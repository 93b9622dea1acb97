// SPDX-License-Identifier: Apache-2.0
// Nodes that a running job loses.
#include "absl/strings/str_split.h"
#include "common/base/exit_code.h"
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class LosingTest : public JobFixture {};

TEST_F(LosingTest, ALostConnectionIsALostNodeAndTheRestIsStopped) {
  Make(2);
  RunUntil(State::kRunning);
  const auto actions = Closed(1, "Connection reset by peer");
  EXPECT_TRUE(Sends(actions, 0, v1::JobRequest::kStop));
  EXPECT_FALSE(Sends(actions, 1, v1::JobRequest::kStop));
  Over(0);
  Drained(0);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message,
              AllOf(HasSubstr("node1"), HasSubstr("Connection reset by peer"), HasSubstr("20 s")));
}

// B16: a host in between is gone; some see it later than others.
TEST_F(LosingTest, NodesThatAreLostByTheSameCauseAreToldTogether) {
  Make(4);
  RunUntil(State::kRunning);
  Closed(2, "it is reached through gate");
  ASSERT_EQ(core_->state(), State::kStopping);
  Pass(seconds(1), {0, 1, 3});
  Closed(3, "it is reached through gate");
  Closed(1, "its own");
  Over(0);
  Drained(0);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("node2, node3: "), Not(HasSubstr("node1"))));
  EXPECT_THAT(core_->warnings(), ElementsAre(AllOf(HasSubstr("node1"), HasSubstr("its own"))));
}

// Its neighbours' connections break when it ends its workers, before we give it up.
TEST_F(LosingTest, ANodeThatFellSilentBeforeAFailureIsItsCause) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  Pass(milliseconds(14500), {0});
  Exit(0, 3);
  ASSERT_EQ(core_->state(), State::kStopping);
  Exit(1, 0, 15);
  Over(0);
  Drained(0);
  Pass(seconds(1), {});
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kNode);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message,
              AllOf(HasSubstr("node1"), HasSubstr("rank 0 on node0"), HasSubstr("exit code 3")));
}

// The other way round the failure counts.
TEST_F(LosingTest, ANodeThatFallsSilentAfterAFailureIsNotItsCause) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  Pass(seconds(1));
  Beat(1);
  Exit(0, 3);
  Exit(1, 0, 15);
  Over(0);
  Drained(0);
  Pass(seconds(16), {});
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 3);
}

TEST_F(LosingTest, OutputThatIsLostWithItsNodeIsTold) {
  Make(2);
  RunUntil(State::kRunning);
  for (uint32_t rank = 0; rank < 4; ++rank) Exit(rank, 0);
  Over(0);
  Drained(0);
  Over(1);
  Closed(1, "cut");
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message, HasSubstr("not all of their output"));
}

// A full disk loses what a rank wrote last, which is what its user looks for.
TEST_F(LosingTest, OutputThatIsLostAfterAFailureIsToldToo) {
  Make(2);
  RunUntil(State::kRunning);
  Exit(0, 3);
  Failure(1, v1::NodeFailure::KIND_STATE, 207, "the last 9 bytes of rank 2 are lost");
  Failure(1, v1::NodeFailure::KIND_RESOURCES, 0, "an effect of the end");
  EndAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 3);
  EXPECT_THAT(core_->warnings(), ElementsAre("node1: the last 9 bytes of rank 2 are lost"));
}

// H6: no connection is lost then, and nothing may pass for all of the output.
TEST_F(LosingTest, OutputThatIsLostAfterTheEndIsTheNodesFault) {
  Make(2);
  RunUntil(State::kRunning);
  for (uint32_t rank = 0; rank < 4; ++rank) Exit(rank, 0);
  Over(0);
  Drained(0);
  Over(1);
  NodeClosed closed{NodeId(1), absl::DataLossError("output of rank 1 after byte 7 is lost: EIO")};
  closed.output_lost = true;
  Feed(std::move(closed));
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message, HasSubstr("node1: output of rank 1 after byte 7 is lost: EIO"));
  EXPECT_THAT(verdict().message, HasSubstr("not all of their output"));
}

// E4: its agent came back and could not take the job over.
TEST_F(LosingTest, AnAgentWithoutTheJobIsAShepherdLost) {
  Make(2);
  RunUntil(State::kRunning);
  Feed(NodeClosed{NodeId(1), absl::NotFoundError("the workers have been killed")});
  EndAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 203);
  EXPECT_EQ(verdict().message, "node1: the workers have been killed");
}

// E12
TEST_F(LosingTest, AMachineThatWasStartedAnewIsANodeLost) {
  Make(2);
  RunUntil(State::kRunning);
  Feed(NodeClosed{NodeId(1), absl::NotFoundError("the machine was rebooted"),
                  /*unknown_host=*/false, /*not_authorised=*/false, /*started_anew=*/true});
  EndAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_EQ(verdict().message, "node1: the machine was rebooted");
}

TEST_F(LosingTest, FailuresOfNodesHaveTheirCodes) {
  struct Case {
    v1::NodeFailure::Kind kind;
    int given;
    int code;
  };
  for (const Case& c : {Case{v1::NodeFailure::KIND_SHEPHERD_LOST, 0, 203},
                        {v1::NodeFailure::KIND_STATE, 0, 207},
                        {v1::NodeFailure::KIND_CLEANUP, 0, 204},
                        {v1::NodeFailure::KIND_RESOURCES, 0, 200},
                        {v1::NodeFailure::KIND_SPAWN, 0, 126},
                        {v1::NodeFailure::KIND_SPAWN, 127, 127},
                        {v1::NodeFailure::KIND_STATE, 4000, 207}}) {
    finished_ = false;
    all_.clear();
    Make(2);
    RunUntil(State::kRunning);
    Failure(1, c.kind, c.given, "why");
    EndAll();
    ASSERT_TRUE(finished_);
    EXPECT_EQ(verdict().exit_code, c.code);
    EXPECT_EQ(verdict().message, "node1: why");
  }
}

// A node that is to go away says so while it still runs: all ranks hear it, and nothing has failed.
TEST_F(LosingTest, ANodeThatLeavesEndsTheAttempt) {
  Make(2);
  RunUntil(State::kRunning);
  Failure(1, v1::NodeFailure::KIND_LEAVES, 202, "this host leaves the job");
  EXPECT_EQ(core_->state(), State::kStopping);
  EndAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_TRUE(verdict().leaves);
  EXPECT_FALSE(verdict().absent);
  EXPECT_EQ(verdict().message, "node1: this host leaves the job");
}

// With a machine that goes down all of its processes may be told at once, and ranks be heard first.
TEST_F(LosingTest, ANodeThatLeavesExplainsTheEndsOfRanks) {
  Make(2);
  RunUntil(State::kRunning);
  Exit(1, 0, 15);
  now_ += milliseconds(500);
  Failure(1, v1::NodeFailure::KIND_LEAVES, 202, "this host leaves the job");
  EndAll();
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_TRUE(verdict().leaves);
}

// Of a job that is over anyway it changes nothing.
TEST_F(LosingTest, ANodeThatLeavesAfterTheLastRankHasEndedChangesNothing) {
  Make(2, 1);
  RunUntil(State::kRunning);
  Exit(0, 0);
  Exit(1, 0);
  ASSERT_EQ(core_->state(), State::kStopping);
  Failure(1, v1::NodeFailure::KIND_LEAVES, 202, "this host leaves the job");
  EndAll();
  EXPECT_EQ(verdict().exit_code, 0);
}

// What once took seconds for a thousand: each late fault sorted all of them again, with a search of
// the hostfile per comparison, to write the message again. It is written once, when all have gone.
TEST_F(LosingTest, ThousandsOfNodesThatGoTogetherAreToldOnceInTheirOrder) {
  constexpr uint32_t kNodes = 3000;
  Make(kNodes, 1);
  RunUntil(State::kRunning);
  std::string written;
  int writings = 0;
  for (uint32_t node = kNodes; node-- > 0;) {
    Closed(node, node % 2 == 0 ? "reset" : "timed out");
    if (verdict().message == written) continue;
    written = verdict().message;
    ++writings;
  }
  EXPECT_EQ(writings, 1);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kNode);
  EXPECT_EQ(verdict().exit_code, kExitNodeLost);
  const std::vector<std::string> lines = absl::StrSplit(verdict().message, '\n');
  ASSERT_THAT(lines, testing::SizeIs(3)) << verdict().message;
  EXPECT_EQ(lines[0], "several nodes failed:");
  EXPECT_THAT(lines[1], testing::StartsWith("  node0, node2, node4"));
  EXPECT_THAT(lines[1], testing::HasSubstr(" more: the connection to its agent is lost: reset"));
  EXPECT_THAT(lines[2], testing::StartsWith("  node1, node3, node5"));
}

}  // namespace
}  // namespace dtrain::job
