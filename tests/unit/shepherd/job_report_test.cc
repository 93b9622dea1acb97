// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/job_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace dtrain::shepherd {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

v1::JobPart TwoWorkers() {
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

v1::Started PidsOfBoth() {
  v1::Started started;
  for (uint32_t rank = 2; rank < 4; ++rank) {
    v1::WorkerStarted& worker = *started.add_workers();
    worker.set_rank(rank);
    worker.set_pid(100 + rank);
  }
  return started;
}

class JobReportTest : public ::testing::Test {
 protected:
  JobReportTest() { report_.Begin(TwoWorkers()); }
  const v1::JobOnNode& job() const { return report_.report().job(); }
  JobReport report_;
};

TEST_F(JobReportTest, TellsWhatTheJobHasHere) {
  EXPECT_EQ(job().state(), v1::JobOnNode::STATE_RUNNING);
  EXPECT_EQ(job().node_rank(), 1u);
  EXPECT_EQ(job().node_count(), 2u);
  EXPECT_EQ(job().world_size(), 4u);
  EXPECT_THAT(job().argv(), ElementsAre("python"));
  EXPECT_THAT(job().gpu_uuids(), ElementsAre("GPU-a", "GPU-b"));
  EXPECT_EQ(job().cpulist(), "0-2,4");
  ASSERT_THAT(job().ranks(), SizeIs(2));
  EXPECT_EQ(job().ranks(1).rank(), 3u);
  EXPECT_EQ(job().ranks(1).local_rank(), 1u);
  EXPECT_EQ(job().ranks(1).pid(), 0u);
  EXPECT_THAT(report_.report().containers(), SizeIs(0));
}

TEST_F(JobReportTest, FollowsItsRanks) {
  report_.OnStarted(PidsOfBoth());
  v1::WorkerExit exit;
  exit.set_rank(3);
  exit.set_exit_code(7);
  exit.set_stderr_tail("a secret, perhaps");
  exit.set_error_file("a secret, perhaps");
  report_.OnExit(exit);
  v1::RankProgress progress;
  progress.set_rank(2);
  progress.set_operations(5);
  report_.OnProgress(progress);
  EXPECT_EQ(job().ranks(0).pid(), 102u);
  EXPECT_FALSE(job().ranks(0).ended());
  EXPECT_EQ(job().ranks(0).progress().operations(), 5u);
  EXPECT_TRUE(job().ranks(1).ended());
  EXPECT_EQ(job().ranks(1).exit().exit_code(), 7);
  EXPECT_EQ(job().ranks(1).exit().stderr_tail(), "");
  EXPECT_EQ(job().ranks(1).exit().error_file(), "");
}

TEST_F(JobReportTest, OnlyWhatIsNewIsToBeTold) {
  EXPECT_TRUE(report_.changed());
  report_.SetTold();
  EXPECT_FALSE(report_.changed());
  v1::WorkerExit of_another;
  of_another.set_rank(9);
  report_.OnExit(of_another);
  EXPECT_FALSE(report_.changed());
  report_.SetEnding();
  EXPECT_TRUE(report_.changed());
  EXPECT_EQ(job().state(), v1::JobOnNode::STATE_ENDING);
}

TEST_F(JobReportTest, WhatIsLeftOfContainersIsKnownByName) {
  v1::JobPart part = TwoWorkers();
  part.set_job_id("job");
  part.mutable_programs(0)->mutable_container()->set_image("image");
  JobReport report;
  report.Begin(part);
  ASSERT_THAT(report.report().containers(), SizeIs(1));
  EXPECT_EQ(report.report().containers(0).container().image(), "image");
  EXPECT_THAT(report.report().containers(0).names(), SizeIs(2));
}

TEST(JobReport, AJobThatSharesItsCoresHoldsNone) {
  v1::JobPart part = TwoWorkers();
  part.set_shares_cores(true);
  JobReport report;
  report.Begin(part);
  EXPECT_EQ(report.report().job().cpulist(), "");
}

// It travels once a second.
TEST(JobReport, OfALongCommandTheBeginningIsTold) {
  v1::JobPart part = TwoWorkers();
  part.mutable_programs(0)->add_argv(std::string(1 << 20, 'x'));
  part.mutable_programs(0)->add_argv("last");
  JobReport report;
  report.Begin(part);
  EXPECT_LT(report.report().ByteSizeLong(), 20u << 10);
  EXPECT_THAT(report.report().job().argv(), SizeIs(2));
}

}  // namespace
}  // namespace dtrain::shepherd
