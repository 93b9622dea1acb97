// SPDX-License-Identifier: Apache-2.0
// What a shepherd may say of its job: others see it, and the agent keeps it.
#include "agent/session/reported_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/os/fd.h"
#include "tests/component/session/no_processes.h"

namespace dtrain::session {
namespace {

class ReportedJobTest : public ::testing::Test {
 protected:
  ReportedJobTest() {
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    auto processes = std::make_unique<NoProcesses>(std::move(pair->first));
    processes_ = processes.get();
    end_ = std::move(pair->second);
    channel_ = std::make_unique<ShepherdChannel>(loop_, std::move(processes));
    job_ = std::make_unique<ReportedJob>(
        Surroundings{loop_, readers_, reservations_, {}, ""}, hello_, /*owner=*/7, *channel_,
        [](const Event&) {}, [](const std::string&) {});
  }
  static v1::Report ReportOf(std::initializer_list<uint32_t> ranks) {
    v1::Report report;
    for (const uint32_t rank : ranks) report.mutable_job()->add_ranks()->set_rank(rank);
    return report;
  }

  loop::Loop loop_;
  Readers readers_;
  Reservations reservations_;
  v1::Hello hello_;
  os::UniqueFd end_;
  NoProcesses* processes_ = nullptr;
  std::unique_ptr<ShepherdChannel> channel_;
  std::unique_ptr<ReportedJob> job_;
};

TEST_F(ReportedJobTest, ItsRanksAreThoseOfTheFirstReport) {
  job_->OnReport(ReportOf({3, 4}));
  job_->OnReport(ReportOf({4}));
  EXPECT_FALSE(processes_->was_killed);
  job_->OnReport(ReportOf({4, 5}));
  EXPECT_TRUE(processes_->was_killed) << "it could go on for ever";
}

TEST_F(ReportedJobTest, ItHasNoMoreGpusThanANode) {
  v1::Report report = ReportOf({0});
  for (int i = 0; i < kMostGpus; ++i) report.mutable_job()->add_gpu_uuids(absl::StrCat("GPU-", i));
  job_->OnReport(report);
  EXPECT_FALSE(processes_->was_killed);
  report.mutable_job()->add_gpu_uuids("GPU-more");
  job_->OnReport(report);
  EXPECT_TRUE(processes_->was_killed);
}

TEST_F(ReportedJobTest, ItsListOfCoresIsShort) {
  v1::Report report = ReportOf({0});
  report.mutable_job()->set_cpulist(std::string(100'000, '1'));
  job_->OnReport(report);
  EXPECT_TRUE(processes_->was_killed);
}

TEST_F(ReportedJobTest, ItsCommandIsAsShortAsAShepherdCutsIt) {
  v1::Report report = ReportOf({0});
  report.mutable_job()->add_argv(std::string((16 << 10) - 1, 'x'));
  for (int i = 0; i < 1000; ++i) report.mutable_job()->add_argv("");
  report.mutable_job()->add_argv("x");
  job_->OnReport(report);
  EXPECT_FALSE(processes_->was_killed);
  report.mutable_job()->add_argv("x");
  job_->OnReport(report);
  EXPECT_TRUE(processes_->was_killed);
}

TEST_F(ReportedJobTest, ItsCommandIsNoMebibyte) {
  v1::Report report = ReportOf({0});
  report.mutable_job()->add_argv(std::string(1 << 20, 'x'));
  job_->OnReport(report);
  EXPECT_TRUE(processes_->was_killed);
}

TEST_F(ReportedJobTest, ItsCommandHasNoMillionOfEmptyWords) {
  v1::Report report = ReportOf({0});
  for (int i = 0; i < 1'000'000; ++i) report.mutable_job()->add_argv("");
  job_->OnReport(report);
  EXPECT_TRUE(processes_->was_killed);
}

// They stay in the agent's memory, and a user may have a thousand jobs.
TEST_F(ReportedJobTest, WhatAUsersJobsReportHasABoundTogether) {
  const auto limit = std::make_shared<rpc::SharedLimit>(1 << 20);
  job_ = std::make_unique<ReportedJob>(
      Surroundings{loop_, readers_, reservations_, {}, "", nullptr, limit}, hello_, /*owner=*/7,
      *channel_, [](const Event&) {}, [](const std::string&) {});
  v1::Report report = ReportOf({0});
  report.mutable_job()->add_argv(std::string(10'000, 'x'));
  for (int i = 0; i < 1000; ++i) job_->OnReport(report);  // the last counts
  EXPECT_FALSE(processes_->was_killed);
  EXPECT_FALSE(limit->Add((1 << 20) - 10'000)) << "it is counted";
  ASSERT_TRUE(limit->Add((1 << 20) - 15'000)) << "of other jobs";
  report.mutable_job()->add_argv(std::string(6'000, 'x'));
  job_->OnReport(report);
  EXPECT_TRUE(processes_->was_killed);
  job_.reset();
  EXPECT_TRUE(limit->Add(15'000)) << "nothing is left of it";
}

TEST_F(ReportedJobTest, ItHasNoMoreRanksThanAJobHasProcesses) {
  v1::Report report = ReportOf({});
  for (uint32_t rank = 0; rank < 32'768; ++rank) {
    report.mutable_job()->add_ranks()->set_rank(rank);
  }
  job_->OnReport(report);
  EXPECT_FALSE(processes_->was_killed);
  // One that it knows: there would be no end of them.
  report.mutable_job()->add_ranks()->set_rank(0);
  job_->OnReport(report);
  EXPECT_TRUE(processes_->was_killed);
}

}  // namespace
}  // namespace dtrain::session
