// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const char kJob[] = R"({"id": "dtrain-1", "phase": "run", "command": ["python", "train.py"],
  "seconds": 3725.5, "ranks": {"waiting": 0, "running": 2, "ended": 2, "failed": 1}, "nodes": 2,
  "waiting_for": [{"host": "node2", "what": "authentication"}],
  "warnings": ["node1: the output of rank 0 waits\u001b"]})";

TEST(TablesTest, ListsJobsInColumns) {
  EXPECT_EQ(JobsTable(Json::array({Json::parse(kJob)})),
            "JOB       PHASE  RANKS                         NODES  AGE        COMMAND\n"
            "dtrain-1  run    2 running, 1 ended, 1 failed  2      1 h 2 min  python train.py\n");
  EXPECT_EQ(JobsTable(Json::array()), "no jobs\n");
}

TEST(TablesTest, DetachedJobsHaveNamesAndEnds) {
  Json named = Json::parse(kJob);
  named["name"] = "a\x1b";
  const Json ended = {{"id", "dtrain-2"},
                      {"phase", "ended"},
                      {"exit_code", nullptr},
                      {"ended_unix_seconds", 1764205000}};
  EXPECT_THAT(JobsTable(Json::array({named})), HasSubstr("dtrain-1  a\\x1b  run "));
  const std::string table = JobsTable(Json::array({named, ended}));
  EXPECT_THAT(table, AllOf(HasSubstr("JOB       NAME   PHASE  RANKS"),
                           HasSubstr("AGE        ENDED"), HasSubstr("exit ?, 20")));
}

TEST(TablesTest, StoriesAreShownWhateverIsInThem) {
  for (const char* text : {"null", "{}", "7", R"({"attempts": [7], "held_by": {}, "hosts": 7})",
                           R"({"command": {"a": 1}, "problems": 7, "report": 7, "stop": {}})"}) {
    EXPECT_NE(StoryPage(Json::parse(text)), "") << text;
  }
  EXPECT_THAT(StoryPage(Json::parse(R"({"id": "dtrain-1", "state": "running", "name": "\u001b",
                                        "working_directory": "/a\u001b"})")),
              AllOf(HasSubstr("dtrain-1 (\\x1b): running\n"), HasSubstr("/a\\x1b\n")));
}

// Of a job that has ended it is not kept when it was told to.
TEST(TablesTest, AStopIsShownWithItsTimeWhereThatIsKnown) {
  EXPECT_THAT(StoryPage(Json::parse(R"({"stop": {"by": "SIGTERM"}})")),
              HasSubstr("stop asked by  SIGTERM\n"));
  EXPECT_THAT(StoryPage(Json::parse(R"({"stop": {"by": "SIGTERM", "unix_seconds": 86400}})")),
              HasSubstr("stop asked by  SIGTERM, 1970-01-0"));
}

TEST(TablesTest, AttemptsAreShownWithWhatTheyTook) {
  EXPECT_THAT(StoryPage(Json::parse(R"({"attempts": [{"attempt": 0, "ran_s": 0.074, "cause": "a"},
                                                     {"attempt": 1, "ran_s": 3700, "cause": "b"},
                                                     {"attempt": 2, "ran_s": -1, "cause": ""}]})")),
              HasSubstr("  attempt 0, ran 0.07 s: a\n  attempt 1, ran 1 h 1 min: b\n"
                        "  attempt 2, ran 0.00 s: succeeded\n"));
}

TEST(TablesTest, ShowsAJobWithItsNodesAndRanks) {
  const Json all = {
      {"job", Json::parse(kJob)},
      {"nodes",
       Json::parse(R"([{"host": "node1", "state": "joined", "cpus": "0-3", "gpus": []}])")},
      {"ranks", Json::parse(R"([
        {"rank": 0, "host": "node1", "pid": 77, "state": "running",
         "collectives": {"operations": 5, "wait_s": 0.25,
                         "now": {"kind": "allreduce", "number": 6, "seconds": 61.5}}},
        {"rank": 1, "host": "node2", "pid": 78, "state": "ended", "exit_code": 3},
        {"rank": 2, "host": "node2", "pid": 79, "state": "ended", "signal": 9}])")}};
  EXPECT_THAT(JobPage(all),
              AllOf(HasSubstr("dtrain-1: run, 2 running, 1 ended, 1 failed, 1 h 2 min\n"),
                    HasSubstr("waiting for node2: authentication\n"),
                    HasSubstr("warning: node1: the output of rank 0 waits\\x1b\n"),
                    HasSubstr("node1  joined  0-3   0\n"),
                    HasSubstr("0     node1  77   running      in allreduce 6 for 61.5 s\n"),
                    HasSubstr("exit 3"), HasSubstr("killed by 9")));
}

TEST(TablesTest, AJobOfThousandsFitsOnAScreen) {
  Json ranks = Json::array();
  for (int i = 0; i < 3000; ++i)
    ranks.push_back({{"rank", i}, {"host", "n"}, {"state", "running"}});
  const std::string page = JobPage({{"job", Json::object()}, {"ranks", ranks}});
  EXPECT_THAT(page, HasSubstr("and 2936 more ranks; --json has all"));
  EXPECT_LT(std::count(page.begin(), page.end(), '\n'), 80);
}

// An answer is another program's: what is missing or odd in it must not bring us down.
TEST(TablesTest, OddAnswersAreShownAsDashes) {
  for (const char* text : {"null", "{}", "[]", "7", "\"x\"", R"({"job": 7, "ranks": {"a": 1}})",
                           R"({"job": {"id": [], "ranks": 3, "command": "x", "waiting_for": 1},
                               "nodes": [null, 3], "ranks": [[], {"collectives": {"now": 3}}]})"}) {
    const Json json = Json::parse(text);
    EXPECT_THAT(JobPage(json), Not(testing::IsEmpty())) << text;
    EXPECT_THAT(JobsTable(Json::array({json})), HasSubstr("-")) << text;
  }
  const Json escape = Json::parse(R"([{"id": "\u001b[31mred", "command": ["a\nb"]}])");
  EXPECT_THAT(JobsTable(escape), AllOf(HasSubstr("\\x1b[31mred"), HasSubstr("a\\nb")));
}

// A rank may hang after its traceback.
TEST(TablesTest, ARankThatHasFailedAndNotEndedSaysSo) {
  Json all = {
      {"job", Json::parse(kJob)},
      {"nodes", Json::array()},
      {"ranks",
       {{{"rank", 0}, {"host", "node1"}, {"pid", 4}, {"state", "running"}},
        {{"rank", 1},
         {"host", "node2"},
         {"pid", 5},
         {"state", "running"},
         {"sign", {{"what", "traceback"}, {"unix_s", absl::ToUnixSeconds(absl::Now()) - 4}}}}}}};
  EXPECT_THAT(JobPage(all),
              testing::ContainsRegex("1 +node2 +5 +traceback [4-6] s ago, not exited"));
  all["ranks"][1]["sign"] = 7;
  EXPECT_THAT(JobPage(all), testing::ContainsRegex("1 +node2 +5 +running"));
}

}  // namespace
}  // namespace dtrain::status
