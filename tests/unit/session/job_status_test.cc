// SPDX-License-Identifier: Apache-2.0
#include "agent/session/job_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain::session {
namespace {

using State = SessionCore::State;
using ::testing::ElementsAre;

v1::JobOnNode OfShepherd() {
  v1::JobOnNode job;
  job.set_state(v1::JobOnNode::STATE_RUNNING);
  job.set_world_size(4);
  job.add_argv("python");
  job.add_ranks()->set_rank(2);
  job.add_ranks()->set_rank(3);
  return job;
}

TEST(JobStatus, IsWhatTheShepherdReportedLast) {
  JobStatus status;
  EXPECT_EQ(status.View(State::kJoined, false).ranks_size(), 0);
  status.Set(OfShepherd());
  v1::JobOnNode later = OfShepherd();
  later.mutable_ranks(1)->set_ended(true);
  status.Set(later);
  const v1::JobOnNode job = status.View(State::kRunning, false);
  EXPECT_EQ(job.world_size(), 4u);
  EXPECT_THAT(job.argv(), ElementsAre("python"));
  ASSERT_EQ(job.ranks_size(), 2);
  EXPECT_FALSE(job.ranks(0).ended());
  EXPECT_TRUE(job.ranks(1).ended());
}

// An agent that ends before that would leave a shepherd with which the next one can do nothing.
TEST(JobStatus, HasComeToTheShepherdOnceThatNamesItsRanks) {
  JobStatus status;
  EXPECT_FALSE(status.has_part());
  v1::JobOnNode job;
  status.Set(job);
  EXPECT_FALSE(status.has_part());
  job.add_ranks();
  status.Set(job);
  EXPECT_TRUE(status.has_part());
}

TEST(JobStatus, StatesAreThoseOfTheSession) {
  JobStatus status;
  EXPECT_EQ(status.View(State::kJoined, false).state(), v1::JobOnNode::STATE_JOINING);
  status.Set(OfShepherd());
  EXPECT_EQ(status.View(State::kRunning, false).state(), v1::JobOnNode::STATE_RUNNING);
  EXPECT_EQ(status.View(State::kRunning, true).state(), v1::JobOnNode::STATE_AWAY);
  EXPECT_EQ(status.View(State::kOrphaned, true).state(), v1::JobOnNode::STATE_ENDING);
  EXPECT_EQ(status.View(State::kReaping, false).state(), v1::JobOnNode::STATE_ENDING);
  EXPECT_EQ(status.View(State::kReleasing, false).state(), v1::JobOnNode::STATE_FINISHED);
  EXPECT_EQ(status.View(State::kFinished, true).state(), v1::JobOnNode::STATE_FINISHED);
  status.SetStopping();
  EXPECT_EQ(status.View(State::kRunning, false).state(), v1::JobOnNode::STATE_ENDING);
}

TEST(JobStatus, ThatItsWorkersEndTheShepherdMaySay) {
  JobStatus status;
  v1::JobOnNode job = OfShepherd();
  job.set_state(v1::JobOnNode::STATE_ENDING);
  status.Set(job);
  EXPECT_EQ(status.View(State::kRunning, false).state(), v1::JobOnNode::STATE_ENDING);
  job.set_state(v1::JobOnNode::STATE_FINISHED);  // that is not its to say
  status.Set(job);
  EXPECT_EQ(status.View(State::kRunning, false).state(), v1::JobOnNode::STATE_RUNNING);
}

}  // namespace
}  // namespace dtrain::session
