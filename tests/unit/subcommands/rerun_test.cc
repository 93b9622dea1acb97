// SPDX-License-Identifier: Apache-2.0
#include "launcher/history/rerun.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/cli/flag_table.h"
#include "launcher/cli/words.h"
#include "launcher/history/options.h"

namespace dtrain::history {
namespace {

using Strings = std::vector<std::string>;
using testing::HasSubstr;

// Whether this version has it.
bool Has(const char* flag) { return cli::FindLong(cli::LaunchFlags(), flag) >= 0; }

TEST(RerunTest, TheWordsMeanTheSame) {
  Strings want = {"launch", "--np", "2", "--export", "--key"};
  // A new job, whatever a variable may have said for the old one.
  if (Has("detach")) want.emplace_back("--detach");
  want.insert(want.end(), {"--", "python3", "--key", "x"});
  const auto words = WordsToRerun({"launch", "-np", "2", "-x", "--key", "python3", "--key", "x"});
  ASSERT_TRUE(words.ok()) << words.status();
  const auto split = [](const Strings& all) {
    return cli::SplitWords(cli::LaunchFlags(), {all.begin() + 1, all.end()});
  };
  EXPECT_EQ(split(*words)->command, split(want)->command);
  EXPECT_EQ(split(*words)->flags.size(), split(want)->flags.size());
}

TEST(RerunTest, ProgramsBehindAColonStaySeparate) {
  const auto words = WordsToRerun({"launch", "-np", "2", "a", ":", "-np", "3", "b"});
  ASSERT_TRUE(words.ok());
  const auto split = cli::SplitWords(cli::LaunchFlags(), {words->begin() + 1, words->end()});
  ASSERT_TRUE(split.ok());
  EXPECT_EQ(split->command, Strings{"a"});
  EXPECT_EQ(split->further, (Strings{"-np", "3", "b"}));
}

TEST(RerunTest, AKeyIsLeftOutAndDetachAdded) {
  if (!Has("key") || !Has("detach")) GTEST_SKIP() << "this version has no detached launches";
  const Strings want = {"launch", "--np", "2", "--detach", "--", "true"};
  EXPECT_EQ(*WordsToRerun({"launch", "--key", "k", "-np", "2", "true"}), want);
  EXPECT_EQ(*WordsToRerun({"launch", "-np", "2", "-d", "--key=k", "true"}), want);
  EXPECT_EQ(*WordsToRerun({"launch", "-np", "2", "--launcher-on", "login2", "-d", "true"}), want);
}

TEST(RerunTest, OtherLaunchersWordsAreTheirOwn) {
  const Strings words = {"mpirun", "--key", "2", "true"};
  EXPECT_EQ(*WordsToRerun(words), words);
  EXPECT_FALSE(WordsToRerun({}).ok());
  EXPECT_FALSE(WordsToRerun({"launch", "--no-such", "true"}).ok());
}

TEST(HistoryOptionsTest, FlagsStandBeforeOrBehindTheJobs) {
  for (const Strings& args : {Strings{"wait", "--timeout", "2m", "a", "b", "--json"},
                              Strings{"wait", "a", "--json", "b", "--timeout=2m"}}) {
    const auto options = Parse(args);
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->jobs, (Strings{"a", "b"}));
    EXPECT_EQ(options->timeout, std::chrono::minutes(2));
    EXPECT_TRUE(options->json);
  }
  const auto options = Parse({"prune", "--keep-age", "2d", "--keep-jobs=7", "--keep-bytes", "1G"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->keep_age, absl::Hours(48));
  EXPECT_EQ(options->keep_jobs, 7u);
  EXPECT_EQ(options->keep_bytes, uint64_t{1} << 30);
}

TEST(HistoryOptionsTest, MistakesAreNamed) {
  const auto error = [](const Strings& args) {
    return std::string(Parse(args).status().message());
  };
  EXPECT_THAT(error({"history", "--limit", "many"}), HasSubstr("--limit: \"many\" is not"));
  EXPECT_THAT(error({"history", "a"}), HasSubstr("unexpected \"a\""));
  EXPECT_THAT(error({"wait"}), HasSubstr("name a job"));
  EXPECT_THAT(error({"attach", "a", "b"}), HasSubstr("unexpected \"b\""));
  EXPECT_THAT(error({"rerun", "--json", "a"}), HasSubstr("--json"));
  EXPECT_THAT(error({"show", ""}), HasSubstr("empty"));
  EXPECT_THAT(error({"prune", "--keep-bytes", "x"}), HasSubstr("See dtrain prune --help"));
}

}  // namespace
}  // namespace dtrain::history
