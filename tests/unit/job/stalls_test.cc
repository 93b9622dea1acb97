// SPDX-License-Identifier: Apache-2.0
// Ranks that end early, and fences that cannot complete.
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

class StallsTest : public JobFixture {};

// D3
TEST_F(StallsTest, ARankThatEndsEarlyIsWarnedOfOnce) {
  options_.exit_timeout = seconds(30);
  Make(2);
  RunUntil(State::kRunning);
  Exit(3, 0);
  Pass(seconds(29), {0, 1});
  EXPECT_THAT(Warnings(), IsEmpty());
  Pass(seconds(300), {0, 1});
  EXPECT_THAT(Warnings(),
              testing::ElementsAre(AllOf(HasSubstr("rank 3 on node1"), HasSubstr("3 of 4 ranks"))));
  EXPECT_EQ(core_->state(), State::kRunning);
}

// D3: the others wait for it in a fence.
TEST_F(StallsTest, AFenceThatWaitsForAnEndedRankEndsTheJob) {
  options_.exit_timeout = seconds(30);
  Make(2);
  RunUntil(State::kRunning);
  Fence(0, 0);
  Pass(seconds(100), {0, 1});  // a slow rank is no fault
  EXPECT_EQ(core_->state(), State::kRunning);
  Exit(3, 0);
  Pass(seconds(29), {0, 1});
  EXPECT_EQ(core_->state(), State::kRunning);
  Pass(seconds(1), {0, 1});
  ASSERT_EQ(core_->state(), State::kStopping);
  EndAll();
  EXPECT_EQ(verdict().kind, Verdict::Kind::kStalled);
  EXPECT_EQ(verdict().exit_code, 205);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("rank 3 on node1"), HasSubstr("fence 0")));
}

// That it has entered one fence says nothing of the next.
TEST_F(StallsTest, AFenceAfterOneThatWasReleasedWaitsForAnEndedRank) {
  options_.exit_timeout = seconds(30);
  Make(2);
  RunUntil(State::kRunning);
  Exit(3, 0);
  Fence(1, 0);
  EXPECT_TRUE(Sends(Fence(0, 0), 1, v1::JobRequest::kFenceRelease));
  Pass(seconds(60), {0, 1});
  EXPECT_EQ(core_->state(), State::kRunning);
  Fence(0, 1);
  Pass(seconds(29), {0, 1});
  EXPECT_EQ(core_->state(), State::kRunning);
  Pass(seconds(1), {0, 1});
  ASSERT_EQ(core_->state(), State::kStopping);
  EndAll();
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("rank 3 on node1"), HasSubstr("fence 1")));
}

// D3: the user asked for it.
TEST_F(StallsTest, AnExitTimeoutThatWasGivenEndsTheJobWithoutAnyFence) {
  options_.exit_timeout = seconds(2);
  options_.exit_timeout_ends_job = true;
  Make(2);
  RunUntil(State::kRunning);
  Exit(1, 0);
  Pass(seconds(2), {0, 1});
  ASSERT_EQ(core_->state(), State::kStopping);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 205);
  EXPECT_THAT(verdict().message, HasSubstr("rank 1 on node0"));
}

TEST_F(StallsTest, ZeroExitTimeoutIsPatient) {
  options_.exit_timeout = Duration::zero();
  Make(2);
  RunUntil(State::kRunning);
  Fence(0, 0);
  Exit(3, 0);
  Pass(seconds(1000), {0, 1});
  EXPECT_EQ(core_->state(), State::kRunning);
  EXPECT_THAT(Warnings(), IsEmpty());
}

TEST_F(StallsTest, AFenceOutOfSequenceIsItsNodesFault) {
  Make(2);
  RunUntil(State::kRunning);
  Fence(1, 3);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 203);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("node1"), HasSubstr("fence 3")));
}

}  // namespace
}  // namespace dtrain::job
