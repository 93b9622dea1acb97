// SPDX-License-Identifier: Apache-2.0
// A job whose launcher has died, taken over by the next.
#include "common/base/exit_code.h"
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TakeoverTest : public JobFixture {
 public:
  // What the launcher before has written of nodes with two ranks each.
  v1::AttemptRuns Runs(uint32_t nodes) {
    v1::AttemptRuns runs;
    runs.set_world_size(2 * nodes);
    runs.set_universe_size(2 * nodes);
    for (uint32_t i = 0; i < nodes; ++i) {
      v1::RunningNode& node = *runs.add_nodes();
      node.set_node(i);
      node.set_slots(2);
      *node.mutable_inventory() = Inventory(i);
      for (const uint32_t rank : {2 * i, 2 * i + 1}) {
        node.add_workers()->set_rank(rank);
        node.add_started()->set_rank(rank);
        node.mutable_started(node.started_size() - 1)->set_pid(100 + rank);
      }
    }
    return runs;
  }
  void TakeOver(uint32_t nodes, const v1::AttemptRuns& runs) {
    options_.generation = 2;
    Make(nodes);
    core_.emplace(hosts_, options_, runs, now_);
    for (const Action& action : core_->TakeActions()) all_.push_back(action);
  }
  std::vector<Action> Retold(uint32_t node) {
    v1::JobEvent event;
    event.mutable_retold();
    return Message(node, event);
  }
  std::vector<Action> StartedWith(uint32_t node, uint32_t first_pid) {
    v1::JobEvent event;
    for (const uint32_t i : {0U, 1U}) {
      event.mutable_started()->add_workers()->set_rank(2 * node + i);
      event.mutable_started()->mutable_workers(static_cast<int>(i))->set_pid(first_pid + i);
    }
    return Message(node, event);
  }
  std::vector<Action> NotFound(uint32_t node) {
    return Feed(NodeClosed{NodeId(node), absl::NotFoundError("no such job")});
  }
  template <typename What>
  size_t Count() const {
    return static_cast<size_t>(std::count_if(all_.begin(), all_.end(), [](const Action& action) {
      return std::holds_alternative<What>(action);
    }));
  }
};

TEST_F(TakeoverTest, ItRunsWithThePlanThatThereWas) {
  TakeOver(2, Runs(2));
  EXPECT_EQ(core_->state(), State::kRunning);
  EXPECT_EQ(Count<OpenLogs>(), 2);
  EXPECT_EQ(Count<PlanReady>(), 1);
  EXPECT_EQ(core_->plan().world_size, 4);
  ASSERT_EQ(core_->ranks().size(), 4);
  EXPECT_EQ(core_->ranks()[3].pid, 103);
  EXPECT_EQ(core_->ranks()[3].node, NodeId(1));
  EXPECT_TRUE(JobSentTo(0).empty() && JobSentTo(1).empty()) << "nothing is started again";
}

TEST_F(TakeoverTest, WhatNodesSayAgainCountsOnce) {
  TakeOver(2, Runs(2));
  Exit(0, 0);
  for (const uint32_t node : {0U, 1U}) {
    Welcome(node);
    StartedWith(node, 100 + 2 * node);
  }
  Exit(0, 0);
  Exit(1, 0);
  Retold(0);
  Retold(1);
  EXPECT_EQ(core_->state(), State::kRunning);
  Exit(2, 0);
  Exit(3, 0);
  EXPECT_EQ(core_->state(), State::kStopping);
  EndAll();
  EXPECT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kSuccess);
}

TEST_F(TakeoverTest, AFailureThatHappenedMeanwhileIsTheVerdict) {
  TakeOver(2, Runs(2));
  StartedWith(1, 102);
  Exit(3, 7);
  Retold(1);
  EXPECT_EQ(core_->state(), State::kStopping);
  EXPECT_TRUE(Sends(all_, 0, v1::JobRequest::kStop)) << "whether it has answered yet or not";
  StartedWith(0, 100);
  Exit(0, 0, SIGTERM, true);
  Exit(1, 0, SIGTERM, true);
  EndAll();
  EXPECT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 7);
  EXPECT_EQ(verdict().rank, Rank(3));
}

// It had told the others to end, and died.
TEST_F(TakeoverTest, WhatTheLauncherBeforeHadEndedTheJobForIsTheVerdict) {
  TakeOver(2, Runs(2));
  Exit(0, 0, SIGTERM, true);
  Exit(1, 0, SIGTERM, true);
  Retold(0);
  EXPECT_EQ(core_->state(), State::kRunning) << "it is not known yet";
  Exit(3, 7);
  EXPECT_EQ(core_->state(), State::kStopping);
  Exit(2, 0, SIGTERM, true);
  Retold(1);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 7);
  EXPECT_EQ(verdict().rank, Rank(3));
}

TEST_F(TakeoverTest, WorkersThatWereEndedForNoReasonAreTheirNodesFault) {
  TakeOver(2, Runs(2));
  Exit(0, 0, SIGTERM, true);
  Retold(1);
  EXPECT_EQ(core_->state(), State::kRunning);
  Retold(0);
  EXPECT_EQ(core_->state(), State::kStopping);
  EndAll();
  EXPECT_EQ(verdict().exit_code, kExitNodeLost);
}

TEST_F(TakeoverTest, OtherProcessesAreNotTheJob) {
  TakeOver(1, Runs(1));
  StartedWith(0, 500);
  EXPECT_EQ(core_->state(), State::kStopping);
  EndAll();
  EXPECT_EQ(verdict().kind, Verdict::Kind::kNode);
  EXPECT_THAT(verdict().message, HasSubstr("another process"));
}

TEST_F(TakeoverTest, WithoutATakeoverNobodyRetells) {
  Make(1);
  RunUntil(State::kRunning);
  Retold(0);
  EXPECT_EQ(core_->state(), State::kStopping);
}

// F7: its time begins with the takeover.
TEST_F(TakeoverTest, ANodeThatDoesNotAnswerIsLostAfterTheLease) {
  TakeOver(2, Runs(2));
  Pass(options_.lease - seconds(1), {0});
  EXPECT_EQ(core_->state(), State::kRunning);
  Pass(seconds(2), {0});
  EXPECT_EQ(core_->state(), State::kStopping);
  Over(0);
  Drained(0);
  EXPECT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, kExitNodeLost);
  EXPECT_THAT(verdict().message, HasSubstr("node1"));
}

// Connections are made anew after a launcher's death, and all at once.
TEST_F(TakeoverTest, TheFirstNodeThatIsHeardGivesTheOthersALease) {
  options_.away = std::chrono::hours(1);
  TakeOver(2, Runs(2));
  Pass(options_.lease - seconds(1));
  Beat(0);
  Pass(seconds(2), {0});
  EXPECT_EQ(core_->state(), State::kRunning);
  Pass(options_.lease, {0});
  EXPECT_EQ(core_->state(), State::kStopping);
}

TEST_F(TakeoverTest, ANodeThatHadEndedAndIsGoneIsNotLost) {
  TakeOver(2, Runs(2));
  Exit(2, 0);
  Exit(3, 0);
  Finished(1);
  NotFound(1);
  EXPECT_EQ(core_->state(), State::kRunning);
  Exit(0, 0);
  Exit(1, 0);
  Over(0);
  Drained(0);
  EXPECT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kSuccess);
}

TEST_F(TakeoverTest, ANodeThatKnowsNothingOfItsWorkersIsLost) {
  TakeOver(2, Runs(2));
  NotFound(1);
  Over(0);
  Drained(0);
  EXPECT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, kExitAgentLost);
}

TEST_F(TakeoverTest, WhatNeverRanIsEndedEverywhere) {
  TakeOver(3, {});
  EXPECT_EQ(core_->state(), State::kStopping);
  for (const uint32_t node : {0U, 1U, 2U}) {
    EXPECT_TRUE(Sends(all_, node, v1::JobRequest::kStop)) << node;
  }
  EXPECT_EQ(Count<OpenLogs>(), 0) << "of ranks that nobody knows";
  NotFound(0);
  StartedWith(1, 7);  // half of it had
  EXPECT_TRUE(Disconnects(Over(1), 1));
  EXPECT_FALSE(finished_);
  NotFound(2);
  EXPECT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kLauncher);
  EXPECT_EQ(core_->dead_at(), TimePoint::min()) << "nothing of it can live";
}

TEST_F(TakeoverTest, OfWhatNeverRanAHostThatIsSilentMayHaveWorkers) {
  options_.away = std::chrono::minutes(10);
  TakeOver(2, {});
  NotFound(0);
  const TimePoint begin = now_;
  Pass(seconds(300));
  EXPECT_TRUE(finished_);
  EXPECT_GE(core_->dead_at(), begin + options_.away + options_.grace);
}

// ---- fences -------------------------------------------------------------------------------

// Node 0 has heard the release of fence 4, node 1 has not.
TEST_F(TakeoverTest, AReleaseThatOneNodeHasMissedIsMadeAgain) {
  TakeOver(2, Runs(2));
  Fence(0, 4, "a");
  Fence(0, 5, "c");
  Retold(0);
  EXPECT_FALSE(Sends(all_, 1, v1::JobRequest::kFenceRelease));
  Fence(1, 3, "x");
  Fence(1, 4, "b");
  Retold(1);
  std::vector<std::string> keys;
  for (const v1::JobRequest& request : JobSentTo(1)) {
    if (!request.has_fence_release()) continue;
    EXPECT_EQ(request.fence_release().sequence(), 4);
    for (const v1::KeyValue& entry : request.fence_release().entries()) keys.push_back(entry.key());
  }
  EXPECT_THAT(keys, ElementsAre("a", "b"));
  const auto next = Fence(1, 5, "d");
  EXPECT_TRUE(Sends(next, 0, v1::JobRequest::kFenceRelease));
  EXPECT_EQ(core_->state(), State::kRunning);
}

TEST_F(TakeoverTest, AFenceThatNobodyHasEnteredBegins) {
  TakeOver(2, Runs(2));
  Retold(0);
  Retold(1);
  Fence(0, 0);
  EXPECT_TRUE(Sends(Fence(1, 0), 0, v1::JobRequest::kFenceRelease));
}

TEST_F(TakeoverTest, AFenceThatSomeHaveEnteredGoesOn) {
  TakeOver(2, Runs(2));
  Fence(0, 0);
  Retold(0);
  Retold(1);
  EXPECT_TRUE(Sends(Fence(1, 0), 0, v1::JobRequest::kFenceRelease));
}

TEST_F(TakeoverTest, TooManyFencesAreABug) {
  TakeOver(2, Runs(2));
  for (const uint32_t sequence : {0U, 1U, 2U, 3U}) Fence(0, sequence);
  EXPECT_EQ(core_->state(), State::kStopping);
}

}  // namespace
}  // namespace dtrain::job
