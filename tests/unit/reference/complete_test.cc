// SPDX-License-Identifier: Apache-2.0
#include "launcher/reference/complete.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/subcommands/subcommands.h"

namespace dtrain::reference {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using Kind = Completion::Kind;
using Strings = std::vector<std::string>;

const std::vector<Command>& All() {
  static const auto* commands = new std::vector<Command>(subcommands::Reference());
  return *commands;
}

Completion At(const Strings& typed) { return Complete(All(), typed, {"job-a", "job-b", "other"}); }

Strings Words(const Strings& typed) {
  const Completion completion = At(typed);
  EXPECT_EQ(completion.kind, Kind::kWords);
  Strings words;
  for (const cli::Page::Entry& entry : completion.words) words.push_back(entry.word);
  return words;
}

TEST(Complete, CommandsAndWhatTheyAre) {
  EXPECT_THAT(Words({"st"}), ElementsAre("status", "stop"));
  EXPECT_THAT(Words({"bench", ""}), ElementsAre("allreduce", "p2p", "scaling"));
  EXPECT_THAT(Words({"completion", ""}), ElementsAre("bash", "zsh", "fish"));
  EXPECT_THAT(Words({"man", "dtrain-bench-"}),
              ElementsAre("dtrain-bench-allreduce", "dtrain-bench-p2p", "dtrain-bench-scaling"));
  EXPECT_EQ(At({"laun"}).words.at(0).summary, "start a job and wait for it to finish");
  EXPECT_THAT(Words({"--"}), ElementsAre("--help", "--version"));
  EXPECT_THAT(Words({"nonsense", ""}), IsEmpty());
}

TEST(Complete, EveryFlagOfEveryCommand) {
  for (const Command& command : All()) {
    Strings typed;
    if (!command.name.empty()) typed = absl::StrSplit(command.name, ' ');
    typed.push_back("-");
    const Strings offered = Words(typed);
    for (const cli::Flag& flag : command.accepts) {
      for (absl::string_view name : absl::StrSplit(flag.names, ',')) {
        EXPECT_THAT(offered, Contains(std::string(name))) << command.name;
      }
    }
  }
}

TEST(Complete, BenchTakesTheFlagsOfLaunchButThoseItGivesItself) {
  const Strings offered = Words({"bench", "allreduce", "--"});
  EXPECT_THAT(offered, Contains("--sizes"));
  EXPECT_THAT(offered, Contains("--hostfile"));
  EXPECT_THAT(offered, Not(Contains("--result-json")));
}

TEST(Complete, ValuesOfAFixedSet) {
  EXPECT_THAT(Words({"launch", "--tag-output", ""}), ElementsAre("none", "rank", "host"));
  EXPECT_THAT(Words({"launch", "--tag-output=r"}), ElementsAre("--tag-output=rank"));
  EXPECT_THAT(Words({"launch", "--map_by", "p"}), ElementsAre("ppr:"));
  EXPECT_THAT(Words({"bench", "allreduce", "--type", "bf"}), ElementsAre("bfloat16"));
  EXPECT_THAT(Words({"bench", "p2p", "--gpu-bind", "r"}), ElementsAre("rank"));
  EXPECT_THAT(Words({"logs", "--stream", "std"}), ElementsAre("stdout", "stderr"));
  EXPECT_THAT(Words({"launch", "--np", ""}), IsEmpty());
  EXPECT_THAT(Words({"launch", "--quiet=y"}), IsEmpty());
}

TEST(Complete, PathsWhereAFlagTakesOne) {
  EXPECT_EQ(At({"launch", "--hostfile", ""}).kind, Kind::kFiles);
  EXPECT_EQ(At({"launch", "-hostfile", "ho"}).kind, Kind::kFiles);
  EXPECT_EQ(At({"launch", "--hostfile=ho"}).kind, Kind::kFiles);
  EXPECT_EQ(At({"launch", "-q", "--log-dir", ""}).kind, Kind::kDirectories);
  EXPECT_EQ(At({"bench", "p2p", "--worker", ""}).kind, Kind::kFiles);
}

TEST(Complete, TheProgramBeginsAtTheFirstWordThatIsNoFlag) {
  const auto program = [](const Strings& typed) {
    const Completion completion = At(typed);
    return completion.kind == Kind::kProgram ? static_cast<int>(completion.program) : -1;
  };
  EXPECT_EQ(program({"launch", ""}), 2);
  EXPECT_EQ(program({"launch", "-np", "2", "py"}), 4);
  EXPECT_EQ(program({"launch", "-qn2", "py"}), 3);
  EXPECT_EQ(program({"launch", "-qn", "2", "py"}), 4);
  EXPECT_EQ(program({"launch", "--np=2", "--", "-odd"}), 4);
  EXPECT_EQ(program({"launch", "--np=2", "python", "--tag-output", ""}), 3);
  EXPECT_EQ(program({"bench", "scaling", "--np", "-1,-2", "--", "pyth"}), 6);
  EXPECT_EQ(program({"launch", "-np", ""}), -1);
}

TEST(Complete, IdsOfJobs) {
  EXPECT_THAT(Words({"status", "job"}), ElementsAre("job-a", "job-b"));
  EXPECT_THAT(Words({"logs", "-f", "--rank", "3", ""}), ElementsAre("job-a", "job-b", "other"));
  EXPECT_THAT(Words({"stop", "job-a", ""}), IsEmpty());
  EXPECT_THAT(Words({"ps", ""}), IsEmpty());
  EXPECT_THAT(Words({"status", "--rank", ""}), Contains("other"));  // no flag of status: left alone
}

TEST(Complete, TheAnswerIsALineForEachWord) {
  EXPECT_EQ(FormatCompletion(At({"stop", "job-a"})), "words\njob-a\t\n");
  EXPECT_EQ(FormatCompletion(At({"launch", "--rankfile", ""})), "files\n");
  EXPECT_EQ(FormatCompletion(At({"launch", "ls", "-l"})), "program 2\n");
  EXPECT_EQ(FormatCompletion(At({"launch", "--ssh-c"})),
            "words\n--ssh-config\tread FILE instead of ~/.ssh/config\n");
}

}  // namespace
}  // namespace dtrain::reference
