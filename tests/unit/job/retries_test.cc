// SPDX-License-Identifier: Apache-2.0
// Hosts that cannot be reached yet.
#include "common/base/exit_code.h"
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class RetriesTest : public JobFixture {
 public:
  RetriesTest() { options_.retry_for = seconds(10); }

  std::vector<Action> Refused(uint32_t node) {
    NodeClosed closed{NodeId(node), absl::UnavailableError("connect to it: Connection refused")};
    closed.passes = "connection refused";
    return Feed(std::move(closed));
  }
  // Nodes that are to be dialled, and after how many tries.
  static std::vector<std::string> Again(const std::vector<Action>& actions) {
    std::vector<std::string> nodes;
    for (const Action& action : actions) {
      const auto* again = std::get_if<ConnectAgain>(&action);
      if (again) nodes.push_back(absl::StrCat(again->node.value(), "/", again->tries));
    }
    return nodes;
  }
  void Join(uint32_t node) {
    Feed(NodeConnected{NodeId(node)});
    Welcome(node);
  }
};

TEST_F(RetriesTest, AreTriedUntilTheyCome) {
  Make(2);
  Join(0);
  EXPECT_THAT(Again(Refused(1)), ElementsAre("1/1"));
  EXPECT_EQ(core_->nodes()[1].waiting_for, "connection refused, 1 try");
  Pass(seconds(1));
  EXPECT_THAT(Again(Refused(1)), ElementsAre("1/2"));
  EXPECT_EQ(core_->nodes()[1].waiting_for, "connection refused, 2 tries");
  EXPECT_THAT(Warnings(), IsEmpty());
  Pass(seconds(2), {0});
  EXPECT_THAT(Warnings(), ElementsAre(AllOf(HasSubstr("waiting for node1: connection refused"),
                                            HasSubstr("10 s (--connect-timeout"))));
  Join(1);
  EXPECT_EQ(core_->state(), State::kProbing);
  ProbeAll();
  PortsHeld(0);
  Started(0);
  Started(1);
  EXPECT_EQ(core_->state(), State::kRunning);
}

TEST_F(RetriesTest, HaveTheirTimeFromTheirOwnFirstTry) {
  Make(2);
  Join(0);
  Pass(seconds(5), {0});
  Feed(NodePhase{NodeId(1), "connection"});
  Refused(1);
  Pass(milliseconds(9900), {0});
  EXPECT_FALSE(finished_);
  Refused(1);
  Pass(milliseconds(100), {0});
  EXPECT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, kExitStartAgents);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("node1: connect to it: Connection refused"),
                                       HasSubstr("10 s (--connect-timeout; --start-timeout")));
  EXPECT_TRUE(verdict().absent);
}

TEST_F(RetriesTest, WithAStartTimeoutThatWasAskedForHaveAllOfIt) {
  options_.retry_each = false;
  options_.retry_for = options_.start_timeout = seconds(60);
  Make(2);
  Join(0);
  for (int i = 0; i < 59; ++i) {
    EXPECT_THAT(Again(Refused(1)), Not(IsEmpty()));
    Pass(seconds(1), {0});
    ASSERT_FALSE(finished_);
  }
  Refused(1);
  Pass(seconds(1), {0});
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, kExitStartAgents);
  EXPECT_THAT(verdict().message, HasSubstr("60 s (--start-timeout)"));
}

// All that is wrong is told at once, with what was still tried.
TEST_F(RetriesTest, WhatDoesNotPassIsNotHeldUp) {
  Make(3);
  Join(0);
  Refused(1);
  Closed(2, "log in as ann: no key was accepted");
  Pass(seconds(1), {0});
  ASSERT_TRUE(finished_);
  EXPECT_THAT(verdict().message,
              AllOf(HasSubstr("node1: connect to it: Connection refused"), Not(HasSubstr("still")),
                    HasSubstr("node2: log in as ann: no key was accepted")));
  EXPECT_FALSE(verdict().absent);
}

TEST_F(RetriesTest, ANameThatNeverComesIsAMistakeOfTheUser) {
  Make(2);
  Join(0);
  NodeClosed closed{NodeId(1), absl::NotFoundError("resolve the name"), true};
  closed.passes = "name not known";
  Feed(std::move(closed));
  Pass(seconds(10), {0});
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, kExitUsage);
}

// Its machine reboots, or its agent was killed.
TEST_F(RetriesTest, OneThatGoesBeforeItJoinsIsDialledAgain) {
  Make(2);
  Join(0);
  Feed(NodeConnected{NodeId(1)});
  EXPECT_THAT(Again(Closed(1)), ElementsAre("1/1"));
  EXPECT_THAT(core_->nodes()[1].waiting_for, HasSubstr("its connection broke"));
  Join(1);
  EXPECT_EQ(core_->state(), State::kProbing);
}

// Once its session has begun it has the lease, however often it was tried before.
TEST_F(RetriesTest, OneThatAnswersIsNotGivenUp) {
  Make(2);
  Join(0);
  Refused(1);
  Pass(seconds(9), {0});
  Feed(NodeConnected{NodeId(1)});
  Pass(seconds(5), {0});
  EXPECT_FALSE(finished_);
  Welcome(1);
  EXPECT_EQ(core_->state(), State::kProbing);
}

TEST_F(RetriesTest, WithMinNodesTheyAreLeftOutWhenTheirTimeIsOver) {
  options_.min_nodes = 1;
  Make(2);
  Join(0);
  Refused(1);
  Pass(milliseconds(9900), {0});
  EXPECT_EQ(core_->state(), State::kConnecting);
  Pass(milliseconds(200), {0});
  EXPECT_GT(core_->state(), State::kConnecting);
  EXPECT_THAT(Warnings().back(), AllOf(HasSubstr("node1 is left out"), HasSubstr("refused")));
}

TEST_F(RetriesTest, ATimeOfZeroMeansOnce) {
  options_.retry_for = Duration::zero();
  Make(1);
  EXPECT_THAT(Again(Refused(0)), IsEmpty());
  EXPECT_TRUE(finished_);
}

// A host that is lost before the workers run says so; afterwards it is a lost node.
TEST_F(RetriesTest, LostBeforeTheWorkersRun) {
  for (const State state : {State::kProbing, State::kHolding, State::kStarting, State::kRunning}) {
    now_ = start_;
    finished_ = false;
    all_.clear();
    Make(2);
    RunUntil(state);
    if (state == State::kStarting) Started(0);
    Closed(1);
    Pass(seconds(4), {0});
    if (core_->state() == State::kStopping) {
      Over(0);
      Drained(0);
    }
    ASSERT_TRUE(finished_) << StateName(state);
    EXPECT_EQ(verdict().absent, state != State::kRunning) << StateName(state);
    EXPECT_THAT(verdict().nodes, ElementsAre(NodeId(1))) << StateName(state);
  }
}

// The program of a rank that has ended needs no other rank: it must not run twice.
TEST_F(RetriesTest, LostWhenARankHasEnded) {
  Make(2);
  RunUntil(State::kStarting);
  Started(0);
  Exit(0, 0);
  Closed(1);
  Pass(seconds(4), {0});
  if (core_->state() == State::kStopping) {
    Over(0);
    Drained(0);
  }
  ASSERT_TRUE(finished_);
  EXPECT_FALSE(verdict().absent);
  EXPECT_THAT(verdict().nodes, ElementsAre(NodeId(1)));
}

// It is there, and does what it must not.
TEST_F(RetriesTest, OneThatBreaksARuleIsNotAbsent) {
  Make(2);
  RunUntil(State::kStarting);
  Feed(NodeClosed{NodeId(1), absl::DataLossError("its agent sent output of rank 70000")});
  Over(0);
  Drained(0);
  ASSERT_TRUE(finished_);
  EXPECT_FALSE(verdict().absent);
}

// ---- workers of an attempt before ----
class UnheardTest : public RetriesTest {
 public:
  UnheardTest() {
    options_.attempt = 1;
    options_.min_nodes = 2;
    options_.unheard = {std::nullopt, std::nullopt, "boot2"};
    options_.doubtful = {false, false, true};
    options_.clear_at = now_ + seconds(40);
  }
};

// Its agent has answered only when none was left.
TEST_F(UnheardTest, AreGoneWhereTheNodeJoins) {
  Make(3);
  ConnectAll();
  EXPECT_EQ(core_->state(), State::kProbing);
  EXPECT_THAT(Warnings(), ElementsAre(HasSubstr("dtrain's processes on node2, or their")));
}

TEST_F(UnheardTest, AreGoneAfterAReboot) {
  options_.unheard[2] = "another";
  Make(3);
  ConnectAll();
  EXPECT_EQ(core_->state(), State::kProbing);
  EXPECT_THAT(Warnings(), IsEmpty());
}

TEST_F(UnheardTest, AreWaitedForWhereItDoesNot) {
  Make(3);
  Join(0);
  Join(1);
  Pass(seconds(39), {0, 1});
  EXPECT_EQ(core_->state(), State::kConnecting);
  EXPECT_THAT(Warnings(),
              testing::Contains(HasSubstr("until the workers of node2 must have ended")));
  Pass(seconds(2), {0, 1});
  EXPECT_EQ(core_->state(), State::kProbing);
}

TEST_F(UnheardTest, SaysWhereTheyMayBe) {
  options_ = JobOptions();
  options_.grace = seconds(5);
  Make(2);
  RunUntil(State::kRunning);
  Closed(1);
  Over(0);
  Drained(0);
  ASSERT_TRUE(finished_);
  ASSERT_EQ(core_->unheard().size(), 1u);
  EXPECT_EQ(core_->unheard()[0].first, NodeId(1));
  EXPECT_EQ(core_->unheard()[0].second, core_->dead_at());
}

}  // namespace
}  // namespace dtrain::job
