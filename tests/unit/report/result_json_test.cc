// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/result_json.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/unit/report/facts_fixture.h"

namespace dtrain::report {
namespace {

class ResultJsonTest : public FactsTest {
 protected:
  nlohmann::json Parse(TimePoint now = At(0)) {
    return nlohmann::json::parse(ResultJson(Facts(), "job-1", now));
  }
};

TEST_F(ResultJsonTest, HoldsTheVerdictPhasesNodesAndRanks) {
  verdict_.kind = job::Verdict::Kind::kWorker;
  verdict_.exit_code = 7;
  verdict_.rank = Rank(3);
  secondary_deaths_ = 1;
  End(3).set_exit_code(7);
  ranks_[3].exit.set_monotonic_nanos(1'500'000'000);
  ranks_[3].exit.set_stderr_tail("boom\n");
  End(0).set_signal(15);
  Phase(job::State::kConnecting, 0, 250);
  Phase(job::State::kStopping, 250);
  nlohmann::json json = Parse(At(750));
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["job_id"], "job-1");
  EXPECT_EQ(json["exit_code"], 7);
  EXPECT_EQ(json["verdict"]["kind"], "worker");
  EXPECT_EQ(json["verdict"]["first_failed_rank"], 3);
  EXPECT_EQ(json["verdict"]["secondary_deaths"], 1);
  EXPECT_EQ(json["world_size"], 4);
  ASSERT_EQ(json["phases"].size(), 2u);
  EXPECT_EQ(json["phases"][0]["name"], "connect");
  EXPECT_DOUBLE_EQ(json["phases"][0]["seconds"], 0.25);
  EXPECT_DOUBLE_EQ(json["phases"][1]["seconds"], 0.5);
  EXPECT_EQ(json["nodes"][1]["host"], "node2");
  const nlohmann::json& rank = json["ranks"][3];
  EXPECT_EQ(rank["host"], "node2");
  EXPECT_EQ(rank["pid"], 4703);
  EXPECT_EQ(rank["exit_code"], 7);
  EXPECT_DOUBLE_EQ(rank["seconds"], 1.5);
  EXPECT_EQ(rank["stderr_tail"], "boom\n");
  EXPECT_EQ(json["ranks"][0]["signal"], 15);
  EXPECT_EQ(json["ranks"][1]["ended"], false);
}

// D14, D15
TEST_F(ResultJsonTest, HoldsWarningsAndMemoryLimits) {
  EXPECT_EQ(Parse()["warnings"], nlohmann::json::array());
  warnings_ = {"node1: GPU 0"};
  End(0).set_signal(9);
  End(0).set_out_of_memory(true);
  End(1).set_out_of_memory(true);
  End(1).set_memory_limit_bytes(1 << 20);
  nlohmann::json json = Parse();
  EXPECT_EQ(json["warnings"], nlohmann::json({"node1: GPU 0"}));
  EXPECT_EQ(json["ranks"][0]["out_of_memory"], true);
  EXPECT_FALSE(json["ranks"][0].contains("memory_limit_bytes"));
  EXPECT_EQ(json["ranks"][1]["memory_limit_bytes"], 1 << 20);
}

TEST_F(ResultJsonTest, HoldsWhatAnErrorFileSays) {
  End(0).set_error_file(
      R"({"message": {"message": "E: \udcff", "extraInfo": {"py_callstack": "T\nE"}}})");
  End(1).set_error_file(R"({"message": "plain", "timestamp": "12"})");
  End(2).set_error_file("junk");
  const nlohmann::json ranks = Parse()["ranks"];
  EXPECT_FALSE(ranks[0].contains("error"));  // half a character is no JSON
  EXPECT_EQ(ranks[1]["error"], nlohmann::json({{"message", "plain"}, {"unix_seconds", 12}}));
  EXPECT_FALSE(ranks[2].contains("error"));
}

// J3
TEST_F(ResultJsonTest, StaysValidWhateverAWorkerWrote) {
  End(0).set_stderr_tail(std::string("\xff\xfe\0\"\\\x1b", 6));
  EXPECT_TRUE(Parse()["ranks"][0]["stderr_tail"].is_string());
}

TEST_F(ResultJsonTest, AJobThatNeverGotRanksHasNone) {
  ranks_.clear();
  verdict_.kind = job::Verdict::Kind::kStartTimeout;
  verdict_.exit_code = 201;
  verdict_.message = "node2 is missing";
  nlohmann::json json = Parse();
  EXPECT_EQ(json["verdict"]["kind"], "start_timeout");
  EXPECT_EQ(json["verdict"]["message"], "node2 is missing");
  EXPECT_TRUE(json["ranks"].empty());
}

TEST_F(ResultJsonTest, TheMessageIsNeverEmpty) {
  const auto message = [this] { return Parse()["verdict"]["message"].get<std::string>(); };
  verdict_ = {};
  verdict_.kind = job::Verdict::Kind::kSuccess;
  EXPECT_EQ(message(), "all 4 ranks ended with 0");
  verdict_.kind = job::Verdict::Kind::kWorker;
  verdict_.rank = Rank(3);
  End(3).set_exit_code(7);
  EXPECT_EQ(message(), "rank 3 on node2 exited with code 7");
  verdict_.message = "rank 1 had finished (exit 0) while 3 ranks waited for it: less data?";
  EXPECT_EQ(message(), "rank 3 on node2 exited with code 7; " + verdict_.message);
  verdict_.message = "some workers may still be running:\n  node2";
  EXPECT_EQ(message(), "rank 3 on node2 exited with code 7\n" + verdict_.message);
  verdict_ = {};
  verdict_.kind = job::Verdict::Kind::kLauncher;
  verdict_.exit_code = 200;
  EXPECT_EQ(message(), "the job ended with exit code 200");
}

}  // namespace
}  // namespace dtrain::report
