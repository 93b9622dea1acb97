// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/agent_jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "launcher/status/tables.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Told From(size_t node, const std::string& id, uint32_t attempt, uint32_t node_rank,
          v1::JobOnNode::State state = v1::JobOnNode::STATE_RUNNING) {
  Told told{node, "node" + std::to_string(node), {}};
  told.report.set_now_unix_nanos(100'000'000'000);
  v1::JobOnNode& job = *told.report.add_jobs();
  job.set_job_id(id);
  job.set_attempt(attempt);
  job.set_owner("alice");
  job.set_node_rank(node_rank);
  job.set_node_count(2);
  job.set_world_size(2);
  job.set_state(state);
  job.set_since_unix_nanos(40'000'000'000);
  job.add_argv("python");
  v1::RankOnNode& rank = *job.add_ranks();
  rank.set_rank(node_rank);
  rank.set_pid(7);
  return told;
}

TEST(AgentJobs, PartsOfOneJobComeTogether) {
  const auto jobs = JobsOf({From(0, "b", 0, 1), From(1, "b", 0, 0), From(2, "a", 0, 0)});
  ASSERT_THAT(jobs, SizeIs(2));
  EXPECT_EQ(jobs[0].id, "a");
  ASSERT_THAT(jobs[1].parts, SizeIs(2));
  EXPECT_EQ(jobs[1].parts[0].host, "node1");  // by node rank
  const Json view = AgentJobView(jobs[1]);
  EXPECT_EQ(view["ranks"]["running"], 2);
  EXPECT_EQ(view["nodes"], 2);
  EXPECT_EQ(view["on"], "node1 and 1 more");
  EXPECT_THAT(view["parts"], SizeIs(2));
  const Json page = AgentJobPage(jobs[1]);
  EXPECT_EQ(page["ranks"][0]["rank"], 0);
  EXPECT_EQ(page["ranks"][1]["host"], "node0");
}

// A node may still be at the end of the attempt before.
TEST(AgentJobs, TheLastAttemptCounts) {
  for (const auto& told : {std::vector{From(0, "a", 1, 0), From(1, "a", 0, 1)},
                           std::vector{From(1, "a", 0, 1), From(0, "a", 1, 0)}}) {
    const auto jobs = JobsOf(told);
    ASSERT_THAT(jobs, SizeIs(1));
    EXPECT_EQ(jobs[0].attempt, 1u);
    ASSERT_THAT(jobs[0].parts, SizeIs(1));
    EXPECT_EQ(jobs[0].parts[0].host, "node0");
  }
}

TEST(AgentJobs, AJobLivesAsLongAsOneOfItsParts) {
  const auto done = v1::JobOnNode::STATE_FINISHED;
  EXPECT_TRUE(JobsOf({From(0, "a", 0, 0, done), From(1, "a", 0, 1)})[0].lives());
  EXPECT_EQ(AgentJobView(JobsOf({From(0, "a", 0, 0, done), From(1, "a", 0, 1)})[0])["phase"],
            "running");
  EXPECT_FALSE(JobsOf({From(0, "a", 0, 0, done), From(1, "a", 0, 1, done)})[0].lives());
}

// Each host has sessions of its own, with any numbers, and perhaps one after the other.
TEST(AgentJobs, TheSessionsOfAnElasticJobAreOneJob) {
  const auto session = [](size_t node, uint32_t number, uint32_t first, uint32_t attempt,
                          v1::JobOnNode::State state) {
    Told told = From(node, "a", number, 0, state);
    v1::JobOnNode& job = *told.report.mutable_jobs(0);
    job.set_node_count(1);
    job.set_world_size(1);
    job.mutable_ranks(0)->set_rank(first);
    job.mutable_elastic()->set_first_number(first);
    job.mutable_elastic()->set_attempt(attempt);
    return told;
  };
  const auto runs = v1::JobOnNode::STATE_RUNNING, done = v1::JobOnNode::STATE_FINISHED;
  Told twice = session(1, 2, 2, 1, done);
  *twice.report.add_jobs() = session(1, 7, 5, 1, runs).report.jobs(0);
  const auto jobs = JobsOf({twice, session(0, 1, 1, 1, runs), session(2, 0, 0, 0, runs)});
  ASSERT_THAT(jobs, SizeIs(1));
  EXPECT_EQ(jobs[0].attempt, 1u);
  ASSERT_THAT(jobs[0].parts, SizeIs(3));
  EXPECT_EQ(jobs[0].parts[0].host, "node0");  // of the lowest number
  const Json view = AgentJobView(jobs[0]);
  EXPECT_EQ(view["attempt"], 1);
  EXPECT_EQ(view["on"], "node0 and 1 more");
  EXPECT_EQ(view["nodes"], 2);
  EXPECT_EQ(view["world_size"], 2);
  EXPECT_EQ(AgentJobPage(jobs[0])["ranks"][2]["rank"], 5);
}

Told Of(const std::string& owner, Told told, bool in_name = false) {
  told.report.mutable_jobs(0)->set_owner(owner);
  told.report.mutable_jobs(0)->set_in_name(in_name);
  return told;
}

TEST(AgentJobs, AJobOfAnotherUserWithTheSameIdHidesNothing) {
  const auto jobs =
      JobsOf({Of("mallory", From(0, "a", 9, 0), true), From(0, "a", 1, 0), From(1, "a", 1, 1)});
  ASSERT_THAT(jobs, SizeIs(2));
  EXPECT_EQ(jobs[0].owner, "alice");
  EXPECT_THAT(jobs[0].parts, SizeIs(2));
  for (const std::string name : {"a", "", "alice/a"}) {
    const auto found = Named(jobs, name);
    ASSERT_TRUE(found.ok() && found->has_value()) << name;
    EXPECT_EQ((*found)->owner, "alice") << name;
  }
  EXPECT_EQ((*Named(jobs, "mallory/a"))->owner, "mallory");
  EXPECT_FALSE(Named(jobs, "bob/a")->has_value());
}

TEST(AgentJobs, OfSeveralThatOneMaySeeOneIsToBeNamed) {
  const auto of_two = JobsOf({Of("mallory", From(0, "a", 9, 0)), From(0, "a", 1, 0)});
  EXPECT_THAT(std::string(Named(of_two, "a").status().message()), HasSubstr("alice/a, mallory/a"));
  const auto two = JobsOf({From(0, "dtrain-aaaab", 0, 0), From(1, "dtrain-aaaac", 0, 0)});
  for (const char* text : {"", "a", "aaaa"}) {
    EXPECT_THAT(std::string(Named(two, text).status().message()),
                HasSubstr("dtrain-aaaab, dtrain-aaaac"));
  }
  EXPECT_EQ((*Named(two, "aaaac"))->id, "dtrain-aaaac");
  EXPECT_THAT(std::string(Named(JobsOf({From(0, "dtrain-aaaab", 0, 0)}), "aaa").status().message()),
              HasSubstr("too short"));
  // One's own, whatever others run beside.
  const auto own = JobsOf({Of("mallory", From(0, "ab", 9, 0), true), From(0, "ac", 1, 0)});
  EXPECT_EQ((*Named(own, ""))->id, "ac");
}

TEST(AgentJobs, ReadAsATable) {
  Told stranger = From(1, "b", 0, 0);
  stranger.report.mutable_jobs(0)->clear_argv();
  stranger.report.mutable_jobs(0)->clear_ranks();
  stranger.report.mutable_jobs(0)->clear_world_size();
  Json list = Json::array();
  for (const AgentJob& job : JobsOf({From(0, "a", 0, 0), stranger})) {
    list.push_back(AgentJobView(job));
  }
  EXPECT_EQ(NodeJobsTable(list),
            "JOB  OWNER  STATE    RANKS      ON     AGE        COMMAND\n"
            "a    alice  running  1 running  node0  1 min 0 s  python\n"
            "b    alice  running  -          node1  1 min 0 s  -\n");
}

Json Node(const std::string& host, const std::string& state) {
  return {{"host", host}, {"state", state}};
}

TEST(NodesPage, EachNodeHasARowAndEachGpu) {
  Json ok = Node("n1", "ok");
  ok.update(Json{{"version", "0.1.0"}, {"cores", 8}, {"free_cores", 6}});
  ok["gpus"] = {{{"index", 0},
                 {"name", "NVIDIA H100"},
                 {"memory_total_bytes", uint64_t{80} << 30},
                 {"memory_used_bytes", uint64_t{31} << 30},
                 {"utilisation_percent", 97},
                 {"temperature_celsius", 61},
                 {"uncorrected_ecc_errors", 0},
                 {"withheld", "held by job dtrain-1 of alice"}},
                {{"index", 1}, {"name", "NVIDIA H100"}, {"fault", "lost"}, {"last_xid", 79}},
                {{"index", 2}, {"name", "NVIDIA H100"}}};
  ok["jobs"] = {{{"id", "dtrain-1"}, {"owner", "alice"}}};
  Json down = Node("n2", "unreachable");
  down["why"] = "no answer\nwithin 10 s";
  const std::string page = NodesPage({ok, down});
  EXPECT_THAT(page, HasSubstr("NODE  STATE        VERSION  CORES  GPUS  JOBS\n"
                              "n1    ok           0.1.0    6/8    1/3   dtrain-1 (alice)\n"
                              "n2    unreachable  -        -      -     -\n"));
  EXPECT_THAT(page, HasSubstr("n1    0    NVIDIA H100  31/80 GiB  97%  61 C  0    -    "
                              "held by job dtrain-1 of alice\n"));
  EXPECT_THAT(page, HasSubstr("n1    1    NVIDIA H100  0/0 GiB    -    -     -    79   lost\n"));
  EXPECT_THAT(page, HasSubstr(" free\n"));
  EXPECT_THAT(page, HasSubstr("\nn2: no answer\\nwithin 10 s\n"));
}

TEST(NodesPage, TooManyGpusAreCounted) {
  Json node = Node("n", "ok");
  node["gpus"] = Json::array();
  for (int i = 0; i < 130; ++i) node["gpus"].push_back(Json{{"index", i}});
  EXPECT_THAT(NodesPage(Json::array({node})), HasSubstr("and 2 more GPUs; --json has all\n"));
}

TEST(NodesPage, AnswersOfAnyShapeAreTaken) {
  for (const Json& nodes :
       {Json::array(), Json{1, "x", nullptr}, Json{{{"gpus", 7}, {"jobs", "x"}, {"host", {}}}},
        Json{{{"gpus", {1, nullptr, "x"}}, {"jobs", {1}}, {"gpu_error", 1}}}}) {
    EXPECT_THAT(NodesPage(nodes), HasSubstr("NODE"));
  }
}

}  // namespace
}  // namespace dtrain::status
