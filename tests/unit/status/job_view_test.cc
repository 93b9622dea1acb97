// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/job_view.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/unit/report/facts_fixture.h"

namespace dtrain::status {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

class JobViewTest : public report::FactsTest {
 protected:
  JobViewTest() {
    job_.id = "dtrain-1";
    job_.argv = {"python", "train.py"};
    job_.launcher_pid = 42;
    job_.begin = At(0);
    job_.begin_unix_nanos = 1'700'000'000'000'000'000;
  }
  JobIdentity job_;
};

TEST_F(JobViewTest, CountsRanksByWhatTheyDo) {
  End(0).set_exit_code(0);
  End(3).set_signal(9);
  report::JobFacts facts = Facts();
  facts.state = job::State::kRunning;
  const auto json = JobView(job_, facts, At(2500));
  EXPECT_EQ(json["id"], "dtrain-1");
  EXPECT_EQ(json["state"], "running");
  EXPECT_EQ(json["command"], nlohmann::json({"python", "train.py"}));
  EXPECT_DOUBLE_EQ(json["seconds"], 2.5);
  EXPECT_DOUBLE_EQ(json["begin_unix_s"], 1.7e9);
  EXPECT_EQ(json["ranks"]["running"], 2);
  EXPECT_EQ(json["ranks"]["ended"], 2);
  EXPECT_EQ(json["ranks"]["failed"], 1);
}

TEST_F(JobViewTest, TellsWhatEachRankDoes) {
  End(1).set_exit_code(7);
  v1::RankProgress& progress = ranks_[2].progress;
  progress.set_operations(10);
  progress.set_inside(true);
  progress.set_number(11);
  progress.set_inside_nanos(1'500'000'000);
  LogTails logs;
  logs.Append(Rank(2), v1::STREAM_KIND_STDERR, "oops");
  const auto json = RanksView(Facts(), {{1, 700}, {2, 701}}, logs);
  EXPECT_EQ(json[0]["state"], "waiting");
  EXPECT_FALSE(json[0].contains("pid"));
  EXPECT_EQ(json[1]["state"], "ended");
  EXPECT_EQ(json[1]["exit_code"], 7);
  EXPECT_EQ(json[2]["state"], "running");
  EXPECT_EQ(json[2]["pid"], 701);
  EXPECT_EQ(json[2]["collectives"]["now"]["number"], 11);
  EXPECT_DOUBLE_EQ(json[2]["collectives"]["now"]["seconds"], 1.5);
  EXPECT_EQ(json[2]["log"]["stderr"]["end"], 4);
}

TEST_F(JobViewTest, MetricsAreOpenMetrics) {
  job_.id = "a\"b\\c";
  ranks_[1].progress.set_operations(3);
  ranks_[1].progress.set_total_bytes(4096);
  ranks_[1].progress.set_wait_nanos(250'000'000);
  const std::string text = MetricsText(job_, Facts(), At(1500), true);
  EXPECT_THAT(text, AllOf(HasSubstr("# TYPE dtrain_job_age_seconds gauge\n"),
                          HasSubstr("dtrain_job_age_seconds{job=\"a\\\"b\\\\c\"} 1.500\n"),
                          HasSubstr("# TYPE dtrain_rank_collectives counter\n"),
                          HasSubstr("dtrain_rank_collective_bytes_total{"),
                          HasSubstr("rank=\"1\",host=\"node1\"} 4096\n"),
                          HasSubstr("rank=\"1\",host=\"node1\"} 0.25\n"), EndsWith("# EOF\n")));
  EXPECT_THAT(text, Not(HasSubstr("rank=\"0\"")));
  EXPECT_THAT(
      MetricsText(job_, Facts(), At(1500), false),
      AllOf(HasSubstr("# TYPE dtrain_rank_collectives_total counter\n"), Not(HasSubstr("EOF"))));
}

}  // namespace
}  // namespace dtrain::status
