// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain::bench {
namespace {

TEST(BenchResults, RowsOfAWholeArray) {
  const auto rows = ReadSizes(R"([{"bytes": 4, "time_us": 10.5, "algbw_gbs": 0.1, "busbw_gbs": 0.2,
    "wrong": 0}, {"bytes": 8, "time_us": 11, "algbw_gbs": 0.3, "busbw_gbs": 0.4, "wrong": 2}])");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].bytes, 4u);
  EXPECT_EQ(rows[0].time_us, 10.5);
  EXPECT_EQ(rows[1].busbw_gbs, 0.4);
  EXPECT_EQ(rows[1].wrong, 2u);
}

TEST(BenchResults, APipelinedRowHasTwoPlaces) {
  const auto row = ReadSizeLine(
      R"({"bytes": 4, "time_us": 1, "algbw_gbs": 1, "busbw_gbs": 1, "wrong": 0,
      "in_place_time_us": 2, "in_place_algbw_gbs": 3, "in_place_busbw_gbs": 4, "in_place_wrong": 5,
      "manner": "pipelined", "memory": "device"})");
  ASSERT_TRUE(row.has_value());
  EXPECT_TRUE(row->pipelined);
  EXPECT_EQ(row->memory, "device");
  ASSERT_TRUE(row->in_place.has_value());
  EXPECT_EQ(row->in_place->time_us, 2);
  EXPECT_EQ(row->in_place->wrong, 5u);
  const auto odd = ReadSizeLine(
      R"({"bytes": 4, "time_us": 1, "algbw_gbs": 1, "busbw_gbs": 1, "in_place_time_us": "2",
      "manner": 7, "memory": []})");
  ASSERT_TRUE(odd.has_value());
  EXPECT_FALSE(odd->pipelined || odd->in_place.has_value());
}

// A worker that died in the middle: its finished sizes count.
TEST(BenchResults, RowsOfAnArrayThatWasCutOff) {
  const auto rows = ReadSizes(
      "[\n{\"bytes\":4,\"time_us\":1,\"algbw_gbs\":1,\"busbw_gbs\":1,\"wrong\":0},\n"
      "{\"bytes\":8,\"time_us\":2,\"algbw_gbs\":2,\"busbw_gbs\":2,\"wrong\":0}\n{\"bytes\":16,"
      "\"ti");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].bytes, 8u);
}

TEST(BenchResults, NonsenseIsNoRow) {
  for (const char* text :
       {"", "[]", "null", "[1,2]", "hello\nworld", "[{\"bytes\": \"4\"}]", "{\"bytes\": 4}", "}{",
        "[{\"bytes\": -4, \"time_us\": 1, \"algbw_gbs\": 1, \"busbw_gbs\": 1}]",
        "[{\"bytes\": 1e300, \"time_us\": 1, \"algbw_gbs\": 1, \"busbw_gbs\": 1}]",
        "[{\"from\": 0, \"to\": 1e12, \"latency_us\": 1, \"bandwidth_gbs\": 1}]", "[[[[[["}) {
    EXPECT_TRUE(ReadSizes(text).empty()) << text;
    EXPECT_TRUE(ReadPairs(text).empty()) << text;
    EXPECT_FALSE(ReadLaunchFacts(text).has_value() && ReadLaunchFacts(text)->run_s > 0) << text;
  }
}

TEST(BenchResults, ALineIsARowWithOrWithoutItsComma) {
  const char* row = R"({"bytes":4,"time_us":1,"algbw_gbs":1,"busbw_gbs":1,"wrong":0})";
  for (const std::string& line : {std::string(row), std::string("[") + row,
                                  std::string("  ") + row + ",", std::string(row) + "]"}) {
    EXPECT_TRUE(ReadSizeLine(line).has_value()) << line;
  }
  EXPECT_FALSE(ReadSizeLine("[").has_value());
}

TEST(BenchResults, Pairs) {
  const auto rows =
      ReadPairs(R"([{"from": 0, "to": 1, "latency_us": 30.5, "bandwidth_gbs": 1.2}])");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].to, 1u);
  EXPECT_EQ(rows[0].bandwidth_gbs, 1.2);
}

TEST(BenchResults, StepsAreToldByTheirMark) {
  const auto step = ReadStep(
      R"([12] dtrain-step {"seconds": 0.5, "compute": 0.3, "allreduce": 0.1, "optimizer": 0.05,
      "samples": 64, "bytes": 1000})");
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(step->rank, 12);
  EXPECT_EQ(step->seconds, 0.5);
  EXPECT_EQ(step->optimiser, 0.05);
  EXPECT_EQ(step->samples, 64);
  EXPECT_EQ(ReadStep("dtrain-step {\"seconds\": 1}\r")->rank, -1);
  for (const char* line :
       {"", "[0] loss 0.3", "[0] dtrain-step", "dtrain-step {\"seconds\": 0}",
        "dtrain-step {\"compute\": 1}", "dtrain-step [1]", "[x] dtrain-step {\"seconds\":1}",
        "dtrain-step {\"seconds\": \"1\"}", "say dtrain-step {\"seconds\": 1}"}) {
    EXPECT_FALSE(ReadStep(line).has_value()) << line;
  }
}

TEST(BenchResults, PhasesBeforeTheRunAreTheStartUp) {
  const auto facts = ReadLaunchFacts(R"({"phases": [{"name": "connect", "seconds": 0.2},
    {"name": "start", "seconds": 0.1}, {"name": "run", "seconds": 5}, {"name": "stop", "seconds": 1}],
    "nodes": [{"host": "a"}, {"host": "b"}],
    "ranks": [{"host": "a", "collectives": {"operations": 7, "bytes": 100, "busy_s": 2, "wait_s": 1}},
              {"host": "b"}]})");
  ASSERT_TRUE(facts.has_value());
  EXPECT_DOUBLE_EQ(facts->startup_s, 0.3);
  EXPECT_EQ(facts->run_s, 5);
  EXPECT_EQ(facts->nodes, 2u);
  ASSERT_EQ(facts->ranks.size(), 2u);
  EXPECT_EQ(facts->ranks[0].busy_s, 2);
  EXPECT_EQ(facts->ranks[1].host, "b");
  EXPECT_EQ(facts->ranks[1].operations, 0);
}

}  // namespace
}  // namespace dtrain::bench
