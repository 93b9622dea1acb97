// SPDX-License-Identifier: Apache-2.0
#include "agent/session/job_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain::session {
namespace {

using State = SessionCore::State;
using ::testing::ElementsAre;

v1::JobPart Start() {
  v1::JobPart part;
  part.set_node_rank(1);
  part.set_node_count(2);
  part.set_world_size(4);
  part.add_programs()->add_argv("python");
  for (uint32_t rank = 2; rank < 4; ++rank) {
    v1::WorkerSpec& worker = *part.add_workers();
    worker.set_rank(rank);
    worker.set_local_rank(rank - 2);
    worker.set_cpulist(rank == 2 ? "0-1" : "2,4");
    worker.set_set_visible_gpus(true);
    worker.add_gpu_uuids(rank == 2 ? "GPU-a" : "GPU-b");
  }
  return part;
}

v1::SessionEvent Started() {
  v1::SessionEvent event;
  for (uint32_t rank = 2; rank < 4; ++rank) {
    v1::WorkerStarted& worker = *event.mutable_started()->add_workers();
    worker.set_rank(rank);
    worker.set_pid(100 + rank);
  }
  return event;
}

v1::SessionEvent Exit(uint32_t rank, int code) {
  v1::SessionEvent event;
  event.mutable_exit()->set_rank(rank);
  event.mutable_exit()->set_exit_code(code);
  event.mutable_exit()->set_stderr_tail("a secret, perhaps");
  event.mutable_exit()->set_error_file("a secret, perhaps");
  return event;
}

TEST(JobStatus, TellsWhatTheJobHasHere) {
  JobStatus status;
  status.SetPart(Start());
  const v1::JobOnNode job = status.View(State::kRunning, false);
  EXPECT_EQ(job.node_rank(), 1u);
  EXPECT_EQ(job.node_count(), 2u);
  EXPECT_EQ(job.world_size(), 4u);
  EXPECT_THAT(job.argv(), ElementsAre("python"));
  EXPECT_THAT(job.gpu_uuids(), ElementsAre("GPU-a", "GPU-b"));
  EXPECT_EQ(job.cpulist(), "0-2,4");
  ASSERT_EQ(job.ranks_size(), 2);
  EXPECT_EQ(job.ranks(1).rank(), 3u);
  EXPECT_EQ(job.ranks(1).local_rank(), 1u);
  EXPECT_EQ(job.ranks(1).pid(), 0u);
}

TEST(JobStatus, FollowsItsRanks) {
  JobStatus status;
  status.SetPart(Start());
  status.FromShepherd(Started());
  status.FromShepherd(Exit(3, 7));
  v1::SessionEvent progress;
  v1::RankProgress& of_two = *progress.mutable_progress()->add_ranks();
  of_two.set_rank(2);
  of_two.set_operations(5);
  status.FromShepherd(progress);
  const v1::JobOnNode job = status.View(State::kRunning, false);
  EXPECT_EQ(job.ranks(0).pid(), 102u);
  EXPECT_FALSE(job.ranks(0).ended());
  EXPECT_EQ(job.ranks(0).progress().operations(), 5u);
  EXPECT_TRUE(job.ranks(1).ended());
  EXPECT_EQ(job.ranks(1).exit().exit_code(), 7);
  EXPECT_EQ(job.ranks(1).exit().stderr_tail(), "");
  EXPECT_EQ(job.ranks(1).exit().error_file(), "");
}

// A shepherd runs as the job's user, who may have put another program in its place.
TEST(JobStatus, RanksThatAreNotOfTheJobAreNotBelieved) {
  JobStatus status;
  status.SetPart(Start());
  status.FromShepherd(Exit(9, 0));
  v1::SessionEvent event;
  event.mutable_started()->add_workers()->set_rank(9);
  event.mutable_progress()->add_ranks()->set_rank(9);
  status.FromShepherd(event);
  v1::JobPart odd = Start();
  odd.mutable_workers(0)->set_cpulist("x");
  status.SetPart(odd);
  const v1::JobOnNode job = status.View(State::kRunning, false);
  EXPECT_EQ(job.ranks_size(), 2);
  EXPECT_THAT(job.gpu_uuids(), ElementsAre("GPU-a", "GPU-b"));
  EXPECT_EQ(job.cpulist(), "0-2,4");
}

TEST(JobStatus, AJobThatSharesItsCoresHoldsNone) {
  JobStatus status;
  v1::JobPart part = Start();
  part.set_shares_cores(true);
  status.SetPart(part);
  EXPECT_EQ(status.View(State::kRunning, false).cpulist(), "");
}

TEST(JobStatus, StatesAreThoseOfTheSession) {
  JobStatus status;
  EXPECT_EQ(status.View(State::kJoined, false).state(), v1::JobOnNode::STATE_JOINING);
  status.SetPart(Start());
  EXPECT_EQ(status.View(State::kRunning, false).state(), v1::JobOnNode::STATE_RUNNING);
  EXPECT_EQ(status.View(State::kRunning, true).state(), v1::JobOnNode::STATE_AWAY);
  EXPECT_EQ(status.View(State::kOrphaned, true).state(), v1::JobOnNode::STATE_ENDING);
  EXPECT_EQ(status.View(State::kReaping, false).state(), v1::JobOnNode::STATE_ENDING);
  EXPECT_EQ(status.View(State::kReleasing, false).state(), v1::JobOnNode::STATE_FINISHED);
  EXPECT_EQ(status.View(State::kFinished, true).state(), v1::JobOnNode::STATE_FINISHED);
  status.SetStopping();
  EXPECT_EQ(status.View(State::kRunning, false).state(), v1::JobOnNode::STATE_ENDING);
}

// What had ended before is not told again when its launcher has heard of it.
TEST(JobStatus, AJobThatWasTakenOver) {
  JobStatus status;
  v1::Account account;
  *account.mutable_part() = Start();
  *account.mutable_started() = Started().started();
  status.Adopt(account, {102});
  v1::JobOnNode job = status.View(State::kRunning, true);
  EXPECT_EQ(job.world_size(), 4u);
  EXPECT_FALSE(job.ranks(0).ended());
  EXPECT_TRUE(job.ranks(1).ended());
  EXPECT_FALSE(job.ranks(1).has_exit());
  status.FromShepherd(Exit(3, 7));
  EXPECT_EQ(status.View(State::kRunning, true).ranks(1).exit().exit_code(), 7);
}

}  // namespace
}  // namespace dtrain::session
