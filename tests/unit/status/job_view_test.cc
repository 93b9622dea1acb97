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
  EXPECT_EQ(json["command"], nlohmann::ordered_json({"python", "train.py"}));
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
  ranks_[2].pid = 701;
  const auto json = RanksView(Facts(), logs);
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

TEST_F(JobViewTest, ASummaryIsSmallHoweverManyNodesAreWaitedFor) {
  for (int i = 0; i < 1000; ++i) {
    job::NodeView node;
    node.host = "gpu" + std::to_string(i);
    node.waiting_for = "ssh: connect";
    nodes_.push_back(node);
  }
  report::JobFacts facts = Facts();
  facts.state = job::State::kConnecting;
  const auto json = SummaryView(job_, facts, At(1500));
  EXPECT_EQ(json["state"], "connecting");
  EXPECT_EQ(json["phase"], "connect");
  EXPECT_EQ(json["world_size"], 4);
  EXPECT_EQ(json["waiting_for"].size(), 8u);
  EXPECT_EQ(json["waiting_for"][0]["host"], "gpu0");
  EXPECT_EQ(json["waiting_more"], 992);
  facts.state = job::State::kRunning;
  nodes_.resize(2);
  EXPECT_FALSE(SummaryView(job_, facts, At(1500)).contains("waiting_for"));
}

TEST_F(JobViewTest, ARanksLetterSaysWhatMattersMost) {
  const auto states = [this] {
    view::Columns columns(1000);
    UpdateColumns(Facts(), columns);
    return columns.Since(0)["rank"]["state"].get<std::string>();
  };
  EXPECT_EQ(states(), "wwww");
  for (job::RankEnd& rank : ranks_) rank.pid = 4000;
  EXPECT_EQ(states(), "rrrr");
  ranks_[0].progress.set_inside(true);
  ranks_[0].progress.set_inside_nanos(6'000'000'000);
  ranks_[1].progress.set_inside(true);
  ranks_[1].progress.set_inside_nanos(1'000'000'000);
  ranks_[2].halted_at = At(5);
  EXPECT_EQ(states(), "crhr");
  nodes_[0].gone = true;
  EXPECT_EQ(states(), "llhr");
  End(0).set_exit_code(0);
  End(1).set_signal(9);
  End(2).set_exit_code(1);
  End(3).set_exit_code(0);
  ranks_[3].exit.set_told_to_stop(true);
  EXPECT_EQ(states(), "dffk");
}

TEST_F(JobViewTest, ANodeThatGoesAtTheEndIsNotLost) {
  const auto states = [this] {
    view::Columns columns(1000);
    UpdateColumns(Facts(), columns);
    return columns.Since(0)["node"]["state"].get<std::string>();
  };
  state_ = job::State::kStopping;
  for (const uint32_t rank : {0, 1, 2}) End(rank).set_exit_code(0);
  nodes_[0].gone = nodes_[1].gone = true;
  EXPECT_EQ(states(), "jg");
  nodes_[1].gone = false;
  nodes_[1].suspect = true;
  EXPECT_EQ(states(), "js");
  state_ = job::State::kRunning;
  EXPECT_EQ(states(), "gs");
  nodes_[0].let_go = true;
  EXPECT_EQ(states(), "es");
}

TEST_F(JobViewTest, AnExitIsACodeOrASignal) {
  End(1).set_signal(9);
  End(2).set_exit_code(7);
  view::Columns columns(1000);
  UpdateColumns(Facts(), columns);
  EXPECT_EQ(columns.Since(0)["rank"]["exit"].dump(), R"({"1":-9,"2":7})");
}

TEST_F(JobViewTest, WaitsAreToldOfRanksThatUseLibdtrain) {
  ranks_[2].progress.set_operations(1);
  ranks_[2].progress.set_wait_nanos(77);
  EXPECT_THAT(WaitNanos(Facts()),
              testing::ElementsAre(std::nullopt, std::nullopt, 77, std::nullopt));
}

TEST_F(JobViewTest, RestartsAreTold) {
  job::CampaignOptions options;
  options.hosts = {"node1", "node2"};
  options.max_restarts = 50;
  options.backoff = std::chrono::seconds(10);
  options.longest_backoff = std::chrono::seconds(10);
  job::CampaignCore campaign(options, At(0));
  campaign.Begin();
  job::AttemptEnded end;
  end.verdict.kind = job::Verdict::Kind::kWorker;
  end.verdict.exit_code = 7;
  end.cause = "because";
  TimePoint now = At(0);
  for (int i = 0; i < 30; ++i) {
    now = std::max(now, campaign.NextDeadline() == kNever ? now : campaign.NextDeadline());
    campaign.OnEvent(now, job::CampaignTick{});
    campaign.OnEvent(now, job::AttemptRuns{});
    campaign.OnEvent(now, end);
  }
  const report::JobFacts facts{state_,    nodes_,   ranks_, phases_, verdict_, secondary_deaths_,
                               warnings_, &campaign};
  for (const auto& view : {JobView(job_, facts, now), SummaryView(job_, facts, now)}) {
    EXPECT_EQ(view["state"], "restarting");
    EXPECT_EQ(view["phase"], "restart");
    EXPECT_EQ(view["restarts"]["attempt"], 30);
    EXPECT_EQ(view["restarts"]["restarts"], 30);
    EXPECT_EQ(view["restarts"]["max_restarts"], 50);
    EXPECT_EQ(view["restarts"]["next_in_s"], 10.0);
    ASSERT_EQ(view["restarts"]["ended"].size(), 20U);
    EXPECT_EQ(view["restarts"]["ended"][19]["attempt"], 29);
    EXPECT_EQ(view["restarts"]["ended"][19]["cause"], "because");
  }
  EXPECT_THAT(MetricsText(job_, facts, now, true),
              AllOf(HasSubstr("# TYPE dtrain_job_restarts counter\n"),
                    HasSubstr("state=\"restarting\"} 1\n"), HasSubstr("\"} 30\n")));
  EXPECT_FALSE(JobView(job_, Facts(), now).contains("restarts"));
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

TEST_F(JobViewTest, AHostWithoutRanksIsNotUsedAndNotGone) {
  for (job::NodeView& node : nodes_) node.gone = node.let_go = true;
  ranks_.resize(2);  // of the first host
  nodes_.push_back({});
  nodes_.back().gone = true;
  const auto json = NodesView(Facts());
  EXPECT_EQ(json[0]["state"], "gone");
  EXPECT_EQ(json[1]["state"], "not used");
  EXPECT_EQ(json[2]["state"], "gone");
}

TEST_F(JobViewTest, AFailureThatIsNoEndIsThere) {
  ranks_[2].seen.sign = job::Sign::kException;
  ranks_[2].seen.unix_nanos = 1'700'000'000'500'000'000;
  ranks_[3].seen.sign = job::Sign::kCrash;
  ranks_[3].seen.unix_nanos = 1'700'000'000'500'000'000;
  End(3).set_signal(6);
  const auto json = RanksView(Facts(), LogTails());
  EXPECT_EQ(json[2]["sign"]["what"], "traceback");
  EXPECT_DOUBLE_EQ(json[2]["sign"]["unix_s"], 1'700'000'000.5);
  EXPECT_FALSE(json[1].contains("sign"));
  EXPECT_FALSE(json[3].contains("sign"));
}

}  // namespace
}  // namespace dtrain::status
