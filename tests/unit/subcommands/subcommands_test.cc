// SPDX-License-Identifier: Apache-2.0
#include "launcher/subcommands/subcommands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dtrain::subcommands {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Strings = std::vector<std::string>;

struct Launched {
  int times = 0;
  cli::LaunchOptions options;
  bool translated = false;
};
Launched launched;

int NoteLaunch(cli::LaunchOptions options, const faces::Translation* translation,
               std::unique_ptr<v1::Spec> read) {
  EXPECT_NE(translation != nullptr, read != nullptr);
  launched = {launched.times + 1, std::move(options), translation != nullptr};
  return 42;
}

struct Ran {
  int code = 0;
  std::string out;
  std::string err;
};

Ran RunWords(const Strings& words) {
  launched = {};
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Ran ran;
  ran.code = Run({{"1.2.3", "2026-11-30"}, NoteLaunch, nullptr}, words);
  ran.out = testing::internal::GetCapturedStdout();
  ran.err = testing::internal::GetCapturedStderr();
  return ran;
}

TEST(Subcommands, EachIsListedOnceAndExplainsItself) {
  const std::vector<reference::Command> commands = Reference();
  std::set<absl::string_view> names;
  for (const Subcommand& entry : All()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    EXPECT_EQ(entry.page(entry.name).command, absl::StrCat("dtrain ", entry.name));
    const Ran help = RunWords({std::string(entry.name), "--help"});
    EXPECT_EQ(help.code, 0) << entry.name;
    EXPECT_EQ(help.out, cli::FormatHelp(reference::Find(commands, entry.name)->page));
    EXPECT_EQ(help.err, "");
    EXPECT_EQ(launched.times, 0) << entry.name;
  }
}

TEST(Subcommands, TheGeneralHelpIsOnStdout) {
  for (const char* word : {"help", "--help", "-h"}) {
    const Ran help = RunWords({word});
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.out, HasSubstr("\n  launch "));
    EXPECT_EQ(help.err, "");
  }
}

TEST(Subcommands, HelpFitsAScreenAndKnowsEachCommand) {
  const std::string general = RunWords({"help"}).out;
  EXPECT_LE(std::count(general.begin(), general.end(), '\n'), 45) << general;
  EXPECT_THAT(general, HasSubstr("\nLook at jobs:\n  ps "));
  EXPECT_THAT(general, HasSubstr("torchrun, mpirun, deepspeed, accelerate, fabric, horovodrun\n"));
  EXPECT_THAT(general, Not(HasSubstr("resume")));
  const std::string launch = RunWords({"help", "launch"}).out;
  EXPECT_LE(std::count(launch.begin(), launch.end(), '\n'), 60) << launch;
  EXPECT_THAT(launch, HasSubstr("dtrain launch --help-all explains all "));
  EXPECT_THAT(launch, Not(HasSubstr("--rankfile")));
  EXPECT_THAT(RunWords({"launch", "--help-all"}).out, HasSubstr("\nBinding:\n"));
  EXPECT_EQ(RunWords({"help", "bench", "p2p"}).out, RunWords({"bench", "p2p", "--help"}).out);
  EXPECT_EQ(RunWords({"help", "launch", "./train.py"}).out, launch);
  EXPECT_EQ(launched.times, 0);
  EXPECT_EQ(RunWords({"help", "--help"}).out, general);
  const Ran odd = RunWords({"help", "kill"});
  EXPECT_EQ(odd.code, 2);
  EXPECT_THAT(odd.err, HasSubstr("did you mean dtrain stop?"));
}

TEST(Subcommands, UnknownWordsAndNone) {
  Ran ran = RunWords({"lanch"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(ran.err, "dtrain: unknown command lanch; did you mean launch?\nSee dtrain --help\n");
  ran = RunWords({"--verison"});
  EXPECT_THAT(ran.err, HasSubstr("did you mean --version?"));
  EXPECT_THAT(RunWords({"run"}).err, HasSubstr("did you mean dtrain launch?"));
  EXPECT_THAT(RunWords({"kill"}).err, HasSubstr("did you mean dtrain stop?"));
  EXPECT_THAT(RunWords({"sbatch"}).err, HasSubstr("did you mean dtrain launch -d?"));
  EXPECT_THAT(RunWords({"-np"}).err, HasSubstr("did you mean dtrain launch -np ...?"));
  EXPECT_THAT(RunWords({"./train.py"}).err,
              HasSubstr("did you mean dtrain launch ./train.py ...?"));
  EXPECT_THAT(RunWords({"\x1b[2J"}).err, HasSubstr("unknown command \\x1b[2J\n"));
  EXPECT_EQ(RunWords({""}).code, 2);
  ran = RunWords({});
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.err, "dtrain: no command given. See dtrain --help\n");
}

TEST(Subcommands, Version) {
  for (const char* word : {"version", "--version", "-V"}) {
    EXPECT_EQ(RunWords({word}).out, "dtrain 1.2.3\n");
    EXPECT_THAT(RunWords({word, "-v"}).out, StartsWith("dtrain 1.2.3"));
    for (const Strings& odd : {Strings{"now"}, Strings{"-v", "now"}, Strings{""}}) {
      Strings words = {word};
      words.insert(words.end(), odd.begin(), odd.end());
      const Ran ran = RunWords(words);
      EXPECT_EQ(ran.code, 2);
      EXPECT_EQ(ran.out, "");
      EXPECT_THAT(ran.err, StartsWith("dtrain: version: unexpected "));
    }
  }
}

TEST(Subcommands, VersionNamesTheWordThatIsWrong) {
  EXPECT_THAT(RunWords({"version", "-v", "now"}).err, HasSubstr("unexpected now\n"));
  EXPECT_THAT(RunWords({"version", "--now", "-v"}).err, HasSubstr("unexpected --now\n"));
}

TEST(Subcommands, LaunchesAreHandedToTheProgram) {
  Ran ran = RunWords({"launch", "-np", "3", "true"});
  EXPECT_EQ(ran.code, 42);
  EXPECT_EQ(launched.times, 1);
  EXPECT_EQ(launched.options.job.plan.ranks, 3u);
  EXPECT_FALSE(launched.translated);
  ran = RunWords({"mpirun", "-np", "2", "true"});
  EXPECT_EQ(ran.code, 42);
  EXPECT_EQ(launched.options.job.plan.ranks, 2u);
  EXPECT_TRUE(launched.translated);
  ran = RunWords({"launch", "--no-such", "true"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(launched.times, 0);
  EXPECT_THAT(ran.err, HasSubstr("See dtrain launch --help"));
  ran = RunWords({"torchrun", "--no-such", "train.py"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(launched.times, 0);
  EXPECT_THAT(ran.err, StartsWith("dtrain: torchrun: "));
}

}  // namespace
}  // namespace dtrain::subcommands
