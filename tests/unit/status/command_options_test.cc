// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/command_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain::status {
namespace {

using testing::HasSubstr;

TEST(CommandOptionsTest, FlagsStandBeforeOrBehindTheJob) {
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"logs", "-f", "--rank", "3", "--stream=stderr", "dtrain-1"},
        std::vector<std::string>{"logs", "dtrain-1", "-f", "-r3", "--stream", "stderr"}}) {
    auto options = ParseCommand(args);
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->job, "dtrain-1");
    EXPECT_TRUE(options->follow);
    EXPECT_EQ(options->rank, 3u);
    EXPECT_EQ(options->stream, "stderr");
  }
}

TEST(CommandOptionsTest, AllButTopHaveJson) {
  for (const char* command : {"ps", "status", "logs", "stop", "nodes"}) {
    auto options = ParseCommand({command, "--json"});
    ASSERT_TRUE(options.ok()) << command << options.status();
    EXPECT_TRUE(options->json) << command;
  }
  EXPECT_FALSE(ParseCommand({"top", "--json"}).ok());
}

TEST(CommandOptionsTest, MistakesAreNamed) {
  auto error = [](const std::vector<std::string>& args) {
    return std::string(ParseCommand(args).status().message());
  };
  EXPECT_THAT(error({"logs", "--rank", "x"}), HasSubstr("\"x\" is not a rank"));
  EXPECT_THAT(error({"logs", "--stream", "both"}), HasSubstr("not stdout or stderr"));
  EXPECT_THAT(error({"logs", "a", "b"}), HasSubstr("unexpected \"b\""));
  EXPECT_THAT(error({"ps", "a"}), HasSubstr("unexpected \"a\""));
  EXPECT_THAT(error({"stop", "--jsn"}), HasSubstr("--jsn"));
  EXPECT_THAT(error({"logs", "--folow"}), HasSubstr("--follow"));
  EXPECT_THAT(error({"stop", "--force"}), HasSubstr("See dtrain stop --help"));
}

TEST(CommandOptionsTest, WhatIsForDetachedJobs) {
  auto options = ParseCommand({"logs", "--tail", "5", "--attempt=2", "train"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->tail, 5u);
  EXPECT_EQ(options->attempt, 2u);
  EXPECT_FALSE(ParseCommand({"logs"})->tail.has_value());
  EXPECT_FALSE(ParseCommand({"logs", "--tail", "-1"}).ok());
  EXPECT_FALSE(ParseCommand({"logs", "--attempt", "4294967296"}).ok());
  EXPECT_TRUE(ParseCommand({"ps", "-a"})->all);
  EXPECT_FALSE(ParseCommand({"status", "-a"}).ok());
}

TEST(CommandOptionsTest, HostsAreNamedAsForALaunch) {
  auto options = ParseCommand({"nodes", "-H", "a,b", "--agent=tcp", "--no-config", "--json"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->json);
  EXPECT_TRUE(options->names_hosts);
  EXPECT_THAT(options->host_words, testing::UnorderedElementsAre("--hosts", "a,b", "--agent", "tcp",
                                                                 "--no-config=true"));
  options = ParseCommand({"stop", "dtrain-1", "--connect-timeout", "3s"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->job, "dtrain-1");
  EXPECT_FALSE(options->names_hosts);
  EXPECT_FALSE(ParseCommand({"nodes", "n1"}).ok());  // -H is missing
  EXPECT_TRUE(ParseCommand({"top", "-H", "a"}).ok());
  EXPECT_FALSE(ParseCommand({"nodes", "--np", "4"}).ok());
}

// HOST stands where a job would.
TEST(CommandOptionsTest, APageIsOfAJobOrANode) {
  auto options = ParseCommand({"page", "--node", "gpu7", "--agent=tcp"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->node);
  EXPECT_EQ(options->job, "gpu7");
  EXPECT_THAT(options->host_words, testing::ElementsAre("--agent", "tcp"));
  EXPECT_TRUE(ParseCommand({"page", "--node"})->job.empty());
  EXPECT_FALSE(ParseCommand({"page", "dtrain-1"})->node);
  EXPECT_THAT(std::string(ParseCommand({"page", "-H", "gpu7"}).status().message()),
              HasSubstr("add --node"));
  EXPECT_FALSE(ParseCommand({"page", "--node", "--json"}).ok());
}

TEST(CommandOptionsTest, EachCommandHasAHelp) {
  for (const char* command : {"ps", "status", "logs", "stop", "top", "page", "nodes"}) {
    auto options = ParseCommand({command, "--help"});
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_THAT(options->help, HasSubstr(std::string("Usage: dtrain ") + command));
  }
}

}  // namespace
}  // namespace dtrain::status
