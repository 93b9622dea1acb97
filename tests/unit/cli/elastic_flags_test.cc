// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/cli/options.h"

namespace dtrain::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ElasticFlagsTest : public ::testing::Test {
 protected:
  ElasticFlagsTest() {
    surroundings_.working_directory = "/here";
    surroundings_.read = [](const std::string& path) -> absl::StatusOr<std::string> {
      return absl::NotFoundError(path);
    };
  }
  absl::StatusOr<Command> Parse(std::vector<std::string> args) {
    args.insert(args.begin(), "launch");
    args.insert(args.end(), {"--", "train"});
    return ParseLaunch(args, surroundings_);
  }
  LaunchOptions Elastic(std::vector<std::string> args) {
    args.insert(args.begin(), {"--elastic", "horovod"});
    absl::StatusOr<Command> command = Parse(std::move(args));
    EXPECT_TRUE(command.ok()) << command.status();
    return command.ok() ? command->launch : LaunchOptions();
  }
  std::string Error(std::vector<std::string> args) {
    return std::string(Parse(std::move(args)).status().message());
  }
  std::string ElasticError(std::vector<std::string> args) {
    args.insert(args.begin(), {"--elastic", "horovod"});
    return Error(std::move(args));
  }
  Surroundings surroundings_;
};

TEST_F(ElasticFlagsTest, AreOffUnlessAskedFor) {
  const auto plain = Parse({"-np", "2"});
  ASSERT_TRUE(plain.ok());
  EXPECT_FALSE(plain->launch.elastic.on);
  EXPECT_EQ(plain->launch.job.stdin_rank, "0");
}

TEST_F(ElasticFlagsTest, AllOfThem) {
  const LaunchOptions all =
      Elastic({"-np", "8", "--min-np", "4", "--max-np", "16", "--cool-down", "5s:2m",
               "--reset-limit", "3", "--discover", "./hosts.sh", "--slots-per-host", "2"});
  EXPECT_TRUE(all.elastic.on);
  EXPECT_EQ(all.elastic.least_ranks, 4U);
  EXPECT_EQ(all.elastic.most_ranks, 16U);
  EXPECT_EQ(all.elastic.most_resets, 3U);
  EXPECT_EQ(all.elastic.cool_down->first, std::chrono::seconds(5));
  EXPECT_EQ(all.elastic.cool_down->second, std::chrono::minutes(2));
  EXPECT_EQ(all.elastic.discover, "./hosts.sh");
  EXPECT_EQ(all.elastic.slots_per_host, 2U);
  EXPECT_THAT(all.job.part.contracts(), ElementsAre(v1::CONTRACT_HOROVOD));
  EXPECT_EQ(all.job.stdin_rank, "none");
  EXPECT_EQ(all.output.tag, output::Tag::kRank);
  EXPECT_EQ(Elastic({}).elastic.cool_down->first, std::chrono::seconds(10));
  EXPECT_FALSE(Elastic({"--cool-down", "never"}).elastic.cool_down);
}

TEST_F(ElasticFlagsTest, NumbersThatContradictEachOther) {
  EXPECT_THAT(ElasticError({"-np", "2", "--min-np", "3"}), HasSubstr("more than -np 2"));
  EXPECT_THAT(ElasticError({"-np", "4", "--max-np", "3"}), HasSubstr("is less than -np 4"));
  EXPECT_THAT(ElasticError({"--min-np", "4", "--max-np", "3"}), HasSubstr("less than --min-np 4"));
  EXPECT_THAT(ElasticError({"--cool-down", "10s"}), HasSubstr("is not LOW:HIGH"));
  EXPECT_THAT(ElasticError({"--cool-down", "10s:5s"}), HasSubstr("too short"));
  EXPECT_THAT(ElasticError({"--cool-down", "10ms:5s"}), HasSubstr("too short"));
  EXPECT_THAT(ElasticError({"--cool-down", "10s:2h"}), HasSubstr("at most 1h"));
  EXPECT_THAT(ElasticError({"--slots-per-host", "2"}), HasSubstr("requires --discover"));
}

TEST_F(ElasticFlagsTest, WhatDoesNotWorkWithThem) {
  const std::vector<std::vector<std::string>> others = {
      {"-d"},           {"--timeline", "t"},       {"--rankfile", "r"},    {"--map-by", "node"},
      {"--spare", "1"}, {"--tf-config", "worker"}, {"--agent-store"},      {"--emulate", "slurm"},
      {"-np", "-2"},    {"--stdin", "all"},        {"--contract", "torch"}};
  for (const std::vector<std::string>& other : others) {
    EXPECT_THAT(ElasticError(other), HasSubstr("--elastic does not work with")) << other[0];
  }
  EXPECT_THAT(ElasticError({"--discover", "x", "-H", "a:1"}), HasSubstr("leave out --hostfile"));
  EXPECT_THAT(ElasticError({"-x", "HOROVOD_CONTROLLER=mpi"}), HasSubstr("works with gloo only"));
  EXPECT_EQ(ElasticError({"-x", "HOROVOD_CONTROLLER=gloo", "--stdin", "none"}), "");
}

TEST_F(ElasticFlagsTest, AreAboutElasticJobsOnly) {
  for (const char* flag : {"--min-np", "--max-np", "--reset-limit"}) {
    EXPECT_THAT(Error({flag, "2"}), HasSubstr("requires --elastic horovod")) << flag;
  }
  EXPECT_THAT(Error({"--discover", "x"}), HasSubstr("requires --elastic horovod"));
  EXPECT_THAT(Error({"--elastic", "torch"}), HasSubstr("is not horovod or none"));
  EXPECT_THAT(Error({"--cool-down", "1s:2s"}), HasSubstr("requires --elastic horovod"));
  surroundings_.environment = {"DTRAIN_COOL_DOWN=1s:2s"};
  EXPECT_EQ(Error({}), "");  // a default for jobs that are
}

}  // namespace
}  // namespace dtrain::cli
