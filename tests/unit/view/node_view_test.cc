// SPDX-License-Identifier: Apache-2.0
#include "common/view/node_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace dtrain::view {
namespace {

using Json = nlohmann::ordered_json;

v1::NodeReport Report() {
  v1::NodeReport report;
  report.set_version("1.2");
  report.set_started_unix_nanos(5'000'000'000);
  report.set_now_unix_nanos(60'000'000'000);
  report.mutable_inventory()->set_allowed_cpus("0-7");
  v1::JobOnNode& job = *report.add_jobs();
  job.set_job_id("dtrain-1");
  job.set_owner("alice");
  job.set_state(v1::JobOnNode::STATE_RUNNING);
  job.set_since_unix_nanos(50'000'000'000);
  job.set_cpulist("0-1");
  job.add_gpu_uuids("GPU-a");
  for (const char* uuid : {"GPU-a", "GPU-b", "GPU-c"}) {
    report.mutable_inventory()->add_gpus()->set_uuid(uuid);
  }
  return report;
}

TEST(NodeView, CoresOfJobsAreNotFree) {
  v1::NodeReport report = Report();
  EXPECT_EQ(NodeView(report, "n")["cores"], 8);
  EXPECT_EQ(NodeView(report, "n")["free_cores"], 6);
  v1::HeldCores& held = *report.mutable_inventory()->add_held_cores();
  held.set_cpulist("1-3");  // one of them is told twice
  EXPECT_EQ(NodeView(report, "n")["free_cores"], 4);
  report.mutable_jobs(0)->set_state(v1::JobOnNode::STATE_FINISHED);
  EXPECT_EQ(NodeView(report, "n")["free_cores"], 5);
  report.mutable_inventory()->set_allowed_cpus("nonsense");
  EXPECT_EQ(NodeView(report, "n")["cores"], 0);
  EXPECT_EQ(NodeView(report, "n")["free_cores"], 0);
}

TEST(NodeView, AGpuTellsWhoHasIt) {
  v1::NodeReport report = Report();
  report.mutable_inventory()->mutable_gpus(1)->set_withheld("memory of a dead job");
  const Json gpus = NodeView(report, "n")["gpus"];
  EXPECT_EQ(gpus[0]["withheld"], "held by job dtrain-1 of alice");
  EXPECT_EQ(gpus[1]["withheld"], "memory of a dead job");
  EXPECT_FALSE(gpus[2].contains("withheld"));
}

// 0 errors are good news, and no news is something else.
TEST(NodeView, WhatAGpuDoesNotTellIsLeftOut) {
  v1::NodeReport report = Report();
  v1::Gpu& told = *report.mutable_inventory()->mutable_gpus(0);
  told.set_uncorrected_ecc_errors(0);
  told.set_temperature_celsius(61);
  told.set_utilisation_percent(97);
  told.set_last_xid(79);
  const Json gpus = NodeView(report, "n")["gpus"];
  EXPECT_EQ(gpus[0]["uncorrected_ecc_errors"], 0);
  EXPECT_EQ(gpus[0]["temperature_celsius"], 61);
  EXPECT_EQ(gpus[0]["utilisation_percent"], 97);
  EXPECT_EQ(gpus[0]["last_xid"], 79);
  for (const char* key :
       {"uncorrected_ecc_errors", "temperature_celsius", "utilisation_percent", "last_xid"}) {
    EXPECT_FALSE(gpus[1].contains(key)) << key;
  }
}

// Of a job that may not be seen there are no ranks.
TEST(NodeView, AGpuTellsWhatUsesIt) {
  v1::NodeReport report = Report();
  v1::Gpu& gpu = *report.mutable_inventory()->mutable_gpus(0);
  for (const uint32_t pid : {41u, 42u}) {
    v1::GpuProcess& process = *gpu.add_processes();
    process.set_pid(pid);
    process.set_name("python");
  }
  gpu.mutable_processes(1)->set_memory_bytes(7);
  gpu.mutable_processes(1)->set_graphics(true);
  v1::RankOnNode& rank = *report.mutable_jobs(0)->add_ranks();
  rank.set_rank(3);
  rank.set_pid(41);
  Json gpus = NodeView(report, "n")["gpus"];
  EXPECT_EQ(gpus[0]["processes"],
            (Json{{{"pid", 41}, {"name", "python"}, {"job", "dtrain-1"}, {"rank", 3}},
                  {{"pid", 42}, {"name", "python"}, {"memory_bytes", 7}, {"graphics", true}}}));
  EXPECT_FALSE(gpus[1].contains("processes"));
  rank.set_ended(true);  // another process may have that number now
  EXPECT_FALSE(NodeView(report, "n")["gpus"][0]["processes"][0].contains("rank"));
}

TEST(NodeView, AnAgentThatIsNotResidentSaysSo) {
  v1::NodeReport report = Report();
  EXPECT_EQ(NodeView(report, "n")["resident"], true);
  report.clear_started_unix_nanos();
  EXPECT_EQ(NodeView(report, "n")["resident"], false);
  EXPECT_FALSE(NodeView(report, "n").contains("started_unix_s"));
}

TEST(JobView, OfAJobThatMayNotBeSeenOnlyItsName) {
  v1::JobOnNode job = Report().jobs(0);
  const Json view = JobView(job, "n", 60'000'000'000);
  EXPECT_EQ(view["owner"], "alice");
  EXPECT_EQ(view["seconds"], 10.0);
  EXPECT_EQ(view["state"], "running");
  for (const char* key : {"command", "world_size", "ranks"}) EXPECT_FALSE(view.contains(key));
  job.set_world_size(2);
  job.add_ranks()->set_pid(7);
  job.add_ranks();
  v1::RankOnNode& killed = *job.add_ranks();
  killed.set_ended(true);
  killed.mutable_exit()->set_signal(9);
  EXPECT_EQ(JobView(job, "n", 0)["ranks"],
            (Json{{"waiting", 1}, {"running", 1}, {"ended", 1}, {"failed", 1}}));
  EXPECT_EQ(JobView(job, "n", 0)["seconds"], 0.0);  // a clock that was set back
}

// A node's clock may say anything.
TEST(JobView, NoClockMakesItOverflow) {
  v1::JobOnNode job;
  job.set_since_unix_nanos(INT64_MIN);
  EXPECT_GT(JobView(job, "n", INT64_MAX)["seconds"], 1e10);
  job.set_since_unix_nanos(INT64_MAX);
  EXPECT_EQ(JobView(job, "n", INT64_MIN)["seconds"], 0.0);
}

TEST(JobView, EveryStateHasAName) {
  const auto* states = v1::JobOnNode::State_descriptor();
  for (int i = 1; i < states->value_count(); ++i) {
    EXPECT_STRNE(StateName(static_cast<v1::JobOnNode::State>(states->value(i)->number())),
                 "unknown");
  }
  EXPECT_STREQ(StateName(static_cast<v1::JobOnNode::State>(99)), "unknown");
  EXPECT_STREQ(StateName(static_cast<v1::JobOnNode::State>(-1)), "unknown");
}

TEST(RankView, TellsHowItEnded) {
  v1::RankOnNode rank;
  rank.set_rank(3);
  EXPECT_EQ(RankView(rank, "n")["state"], "waiting");
  rank.set_pid(42);
  rank.set_stdout_bytes(7);
  EXPECT_EQ(RankView(rank, "n")["state"], "running");
  EXPECT_EQ(RankView(rank, "n")["log"]["stdout"]["end"], 7);
  rank.set_ended(true);
  EXPECT_FALSE(RankView(rank, "n").contains("exit_code"));  // nobody knows
  rank.mutable_exit()->set_exit_code(3);
  EXPECT_EQ(RankView(rank, "n")["exit_code"], 3);
  rank.mutable_exit()->set_signal(15);
  EXPECT_EQ(RankView(rank, "n")["signal"], 15);
  EXPECT_FALSE(RankView(rank, "n").contains("exit_code"));
}

TEST(NodeView, BytesThatAreNoTextDoNotEndUs) {
  v1::NodeReport report = Report();
  report.mutable_jobs(0)->set_world_size(1);
  report.mutable_jobs(0)->add_argv("\xff\xfe");
  const std::string text =
      NodeView(report, "n").dump(-1, ' ', false, Json::error_handler_t::replace);
  EXPECT_THAT(text, ::testing::HasSubstr("\xef\xbf\xbd"));
}

}  // namespace
}  // namespace dtrain::view
