// SPDX-License-Identifier: Apache-2.0
// How long ended jobs are kept, and how much of their output: flags of a launch and [history].
#include "launcher/cli/history_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"

namespace dtrain::cli {
namespace {

using testing::HasSubstr;
using Strings = std::vector<std::string>;

class HistoryConfigTest : public testing::Test {
 protected:
  HistoryConfigTest() {
    surroundings_.environment = {"HOME=/home/me"};
    surroundings_.working_directory = "/here";
    surroundings_.read = [this](const std::string& path) -> absl::StatusOr<std::string> {
      const auto it = files_.find(path);
      if (it == files_.end()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
      return it->second;
    };
  }
  void Config(const std::string& text) { files_["/home/me/.config/dtrain/config.toml"] = text; }
  HistoryConfig Read() {
    const auto config = ReadHistoryConfig(surroundings_);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.value_or(HistoryConfig());
  }
  std::string Mistake(const std::string& text) {
    Config(text);
    // Launching says so, too: its launcher has nobody to tell later.
    const auto launch = ParseLaunch({"launch", "x"}, surroundings_);
    const absl::Status status = ReadHistoryConfig(surroundings_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(launch.status().message()), HasSubstr(std::string(status.message())));
    return std::string(status.message());
  }
  LaunchOptions Launch(Strings args) {
    args.insert(args.begin(), "launch");
    absl::StatusOr<Command> command = ParseLaunch(args, surroundings_);
    EXPECT_TRUE(command.ok()) << command.status();
    return command.ok() ? command->launch : LaunchOptions();
  }
  std::string Error(Strings args) {
    args.insert(args.begin(), "launch");
    absl::StatusOr<Command> command = ParseLaunch(args, surroundings_);
    return command.ok() ? "" : std::string(command.status().message());
  }

  Surroundings surroundings_;
  std::map<std::string, std::string> files_;
};

TEST_F(HistoryConfigTest, EachKeyIsRead) {
  EXPECT_FALSE(Read().keep || Read().jobs || Read().bytes);
  Config("lease = \"20s\"\n[history]\nkeep = \"30d\"\njobs = 500\n");
  EXPECT_EQ(Read().keep, std::chrono::hours(24 * 30));
  EXPECT_EQ(Read().jobs, 500u);
  EXPECT_FALSE(Read().bytes);
  Config("[history]\nbytes = \"20G\"\n[launch]\nlease = \"20s\"\n");
  EXPECT_EQ(Read().bytes, uint64_t{20} << 30);
  files_["/other"] = "history.jobs = 0";
  surroundings_.environment.push_back("DTRAIN_CONFIG=/other");
  EXPECT_EQ(Read().jobs, 0u);
}

TEST_F(HistoryConfigTest, MistakesAreNamedWithTheirLine) {
  const std::string place = "/home/me/.config/dtrain/config.toml";
  EXPECT_EQ(
      Mistake("[launch]\nlease = \"20s\"\n[history]\nkeep = -1\n"),
      absl::StrCat("keep in ", place, ":4: \"-1\" is not a time such as 30, 30s, 500ms, 2m or 1h"));
  EXPECT_THAT(Mistake("[history]\nkeep = \"2y\"\n"), HasSubstr("\"2y\" is not a time"));
  EXPECT_THAT(Mistake("[history]\nkeep = \"366d\"\n"), HasSubstr("at most 365 days"));
  EXPECT_THAT(Mistake("[history]\njobs = \"many\"\n"), HasSubstr("jobs in"));
  EXPECT_THAT(Mistake("[history]\njobs = 1.5\n"), HasSubstr("a whole number"));
  EXPECT_THAT(Mistake("[history]\nbytes = \"20 X\"\n"), HasSubstr("a size such as"));
  EXPECT_THAT(Mistake("[history]\nbytes = [\"1G\", \"2G\"]\n"), HasSubstr("\"1G,2G\" is not"));
  EXPECT_THAT(Mistake("[history]\nbytes = \"\"\n"), HasSubstr("bytes in"));
  EXPECT_EQ(Mistake("[history]\nkep = \"30d\"\n"),
            absl::StrCat(place, ":2: unknown key kep in [history]; did you mean keep?"));
}

TEST_F(HistoryConfigTest, AFileThatIsNamedMustBeThere) {
  surroundings_.environment.push_back("DTRAIN_CONFIG=/none");
  EXPECT_THAT(std::string(ReadHistoryConfig(surroundings_).status().message()),
              HasSubstr("configuration file: cannot read /none"));
}

TEST_F(HistoryConfigTest, WhatIsKeptOfAJobIsSaidWhenItIsLaunched) {
  EXPECT_FALSE(Launch({"-d", "x"}).detach.keep);
  EXPECT_FALSE(Launch({"-d", "x"}).detach.log_limit);
  const LaunchOptions options = Launch({"-d", "--keep", "--log-limit", "64M", "x"});
  EXPECT_TRUE(options.detach.keep);
  EXPECT_EQ(options.detach.log_limit, uint64_t{64} << 20);
  for (const char* bad : {"", "0", "1023K", "-1", "lots", "1e9", "1Z", "99999999T"}) {
    EXPECT_THAT(Error({"-d", "--log-limit", bad, "x"}), HasSubstr("--log-limit")) << bad;
  }
  EXPECT_THAT(Error({"-d", "--log-limit", "1000", "x"}),
              HasSubstr("--log-limit: it must be at least 1M"));
  EXPECT_THAT(Error({"-d", "--keep=maybe", "x"}), HasSubstr("--keep"));
  EXPECT_THAT(Error({"--keep", "x"}), HasSubstr("--keep requires -d"));
  EXPECT_THAT(Error({"--log-limit", "1G", "x"}), HasSubstr("--log-limit requires -d"));
}

// Its user's rules are not known then, and nothing is to be removed.
TEST_F(HistoryConfigTest, AFileThatAnotherUserCanHaveWrittenIsAnError) {
  Config("[history]\njobs = 1\n");
  surroundings_.check = [](const std::string&) { return absl::PermissionDeniedError("theirs"); };
  EXPECT_EQ(ReadHistoryConfig(surroundings_).status(),
            absl::InvalidArgumentError("configuration file: theirs"));
}

TEST_F(HistoryConfigTest, DefaultsForDetachedJobsDoNotConcernOthers) {
  Config("[launch]\nlog-limit = \"1G\"\nkeep = true\n");
  EXPECT_EQ(Launch({"-d", "x"}).detach.log_limit, uint64_t{1} << 30);
  EXPECT_TRUE(Launch({"-d", "x"}).detach.keep);
  EXPECT_FALSE(Launch({"-d", "--keep=false", "x"}).detach.keep);
  EXPECT_FALSE(Launch({"x"}).detach.log_limit);
  EXPECT_FALSE(Launch({"x"}).detach.keep);
  Config("");
  surroundings_.environment.push_back("DTRAIN_LOG_LIMIT=2G");
  EXPECT_EQ(Launch({"-d", "x"}).detach.log_limit, uint64_t{2} << 30);
  EXPECT_FALSE(Launch({"x"}).detach.log_limit);
  Config("[launch]\nlog-limit = 5\n");
  surroundings_.environment.pop_back();
  EXPECT_THAT(Error({"x"}), HasSubstr("log-limit in /home/me/.config/dtrain/config.toml:2"));
}

}  // namespace
}  // namespace dtrain::cli
