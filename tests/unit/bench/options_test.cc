// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "launcher/bench/bench.h"
#include "launcher/bench/flags.h"
#include "launcher/cli/flag_table.h"

namespace dtrain::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Strings = std::vector<std::string>;

Options Good(const Strings& args) {
  absl::StatusOr<Options> options = Parse(args);
  EXPECT_TRUE(options.ok()) << options.status();
  return options.ok() ? *options : Options();
}

std::string Error(const Strings& args) {
  absl::StatusOr<Options> options = Parse(args);
  EXPECT_FALSE(options.ok());
  return options.ok() ? "" : std::string(options.status().message());
}

// Where `words` begins in `all`, or -1.
ptrdiff_t Find(const Strings& all, const Strings& words) {
  auto it = std::search(all.begin(), all.end(), words.begin(), words.end());
  return it == all.end() ? -1 : it - all.begin();
}

TEST(BenchOptions, FlagsOfLaunchGoOnAsTheyAreAndBenchsOwnDoNot) {
  Options options = Good({"allreduce", "-H", "a:2,b:2", "--sizes", "4,64K,1G", "--json", "-np=4",
                          "--oversubscribe", "--ssh_port", "2222"});
  EXPECT_EQ(options.tool, Tool::kAllreduce);
  EXPECT_TRUE(options.json);
  EXPECT_THAT(options.sizes, ElementsAre(4, 65536, 1 << 30));
  EXPECT_THAT(options.launch_flags, ElementsAre("--hosts", "a:2,b:2", "--np", "4",
                                                "--oversubscribe", "--ssh-port", "2222"));
}

TEST(BenchOptions, TheDefaultSizesReachFrom4BytesTo1GibAndHaveResNet50s) {
  const std::vector<uint64_t> sizes = Good({"allreduce"}).sizes;
  EXPECT_EQ(sizes.front(), 4u);
  EXPECT_EQ(sizes.back(), uint64_t{1} << 30);
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 102'228'384u), 1);
  EXPECT_TRUE(std::is_sorted(sizes.begin(), sizes.end()));
  EXPECT_EQ(sizes.size(), 30u);
}

TEST(BenchOptions, MistakesAreNamed) {
  EXPECT_THAT(Error({}), HasSubstr("say what to measure: allreduce, p2p, scaling"));
  EXPECT_THAT(Error({"latency"}), HasSubstr("unknown tool \"latency\""));
  EXPECT_THAT(Error({"allreduce", "--size", "4"}), HasSubstr("did you mean --sizes?"));
  EXPECT_THAT(Error({"allreduce", "--sizes", "4,x"}), HasSubstr("--sizes: \"x\" is not"));
  EXPECT_THAT(Error({"allreduce", "--sizes", "0"}), HasSubstr("--sizes"));
  EXPECT_THAT(Error({"allreduce", "--type", "int8"}), HasSubstr("one of int32"));
  EXPECT_THAT(Error({"allreduce", "--plot", "x.png"}), HasSubstr(".svg or .html"));
  EXPECT_THAT(Error({"allreduce", "./program"}), HasSubstr("a worker of its own"));
  EXPECT_THAT(Error({"p2p", "--sizes", "4"}), HasSubstr("unknown flag --sizes"));
  EXPECT_THAT(Error({"scaling", "--", "x"}), HasSubstr("--np -1,-2,4"));
  EXPECT_THAT(Error({"scaling", "--np", "1,2"}), HasSubstr("no command to run"));
  EXPECT_THAT(Error({"scaling", "--np", "1,,2", "x"}), HasSubstr("--np: \"\" is not"));
  EXPECT_THAT(Error({"scaling", "--np", "--2", "x"}), HasSubstr("--np"));
  EXPECT_THAT(Error({"allreduce", "--dry-run"}), HasSubstr("--dry-run cannot be given to bench"));
  EXPECT_THAT(Error({"allreduce", "--result-json", "x"}), HasSubstr("cannot be given"));
  EXPECT_THAT(Error({"allreduce", "--timestamps=true"}), HasSubstr("cannot be given"));
  EXPECT_THAT(Error({"allreduce", "--sizes"}), HasSubstr("See dtrain bench allreduce --help"));
}

TEST(BenchOptions, OnlyNpAndHelpMeanAnotherThingThanForLaunch) {
  for (Tool tool : {Tool::kAllreduce, Tool::kPairs, Tool::kScaling}) {
    for (const Flag& flag : FlagsOf(tool)) {
      const std::string name(cli::FlagName(flag.shown));
      if (name == "np" || name == "help") continue;
      EXPECT_EQ(cli::FindLong(cli::LaunchFlags(), name), -1) << name;
    }
  }
}

TEST(BenchOptions, HelpNamesEveryFlag) {
  for (const char* tool : {"allreduce", "p2p", "scaling"}) {
    EXPECT_THAT(Good({tool, "--help"}).help, HasSubstr("--plot"));
    EXPECT_THAT(Good({tool, "-h"}).help, HasSubstr(std::string("dtrain bench ") + tool));
  }
  EXPECT_THAT(Good({"--help"}).help, HasSubstr("dtrain bench p2p"));
}

TEST(BenchOptions, NegativeNumbersOfRanksAreLocal) {
  Options options =
      Good({"scaling", "--np", "-2,2,16", "--batch", "32", "-H", "a", "--", "prog", "-x"});
  ASSERT_EQ(options.counts.size(), 3u);
  EXPECT_TRUE(options.counts[0].local);
  EXPECT_EQ(options.counts[0].ranks, 2u);
  EXPECT_FALSE(options.counts[1].local);
  EXPECT_EQ(options.counts[2].ranks, 16u);
  EXPECT_EQ(options.batch, 32);
  EXPECT_THAT(options.command, ElementsAre("prog", "-x"));
}

TEST(BenchCommands, TheWorkerGetsItsFlagsAfterTheLaunchs) {
  Options options =
      Good({"allreduce", "-np", "-2", "--sizes", "4,8", "--op", "max", "--iterations", "7"});
  const Strings words = WorkerLaunch(options, "/opt/dtrain-allreduce");
  EXPECT_EQ(words[0], "launch");
  EXPECT_EQ(Find(words, {"--np", "-2"}), 1);
  const ptrdiff_t command = Find(words, {"--", "/opt/dtrain-allreduce", "--json"});
  EXPECT_GT(command, Find(words, {"--result-json", "/dev/fd/3"}));
  EXPECT_GT(Find(words, {"--sizes", "4,8"}), command);
  EXPECT_GT(Find(words, {"--op", "max"}), command);
  EXPECT_GT(Find(words, {"--iterations", "7"}), command);
  EXPECT_EQ(Find(words, {"--fit"}), -1) << "sizes that were asked for are never left out";
  EXPECT_GT(Find(WorkerLaunch(Good({"allreduce", "-np", "-2"}), "w"), {"--fit"}), 0);
}

TEST(BenchCommands, TheWorkerTravelsToHostsThatAreNamed) {
  EXPECT_TRUE(GoesElsewhere(Good({"allreduce", "-H", "a:1,b:1"})));
  EXPECT_TRUE(GoesElsewhere(Good({"p2p", "--hostfile", "hosts"})));
  EXPECT_FALSE(GoesElsewhere(Good({"allreduce", "-np", "-2"})));
  EXPECT_FALSE(GoesElsewhere(Good({"allreduce", "--hostfile", "hosts", "--wdir", "/data"})));
  EXPECT_FALSE(GoesElsewhere(Good({"scaling", "-H", "a,b", "--np", "1", "--stage", ".", "x"})));
  EXPECT_GT(
      Find(WorkerLaunch(Good({"p2p", "-H", "a,b"}), "bin/w", "/tmp/w"), {"--stage", "/tmp/w"}), 0);
  EXPECT_EQ(Find(WorkerLaunch(Good({"p2p", "-H", "a,b"}), "w"), {"--stage"}), -1);
}

// Else a configuration file would hide what bench reads.
TEST(BenchCommands, WhatBenchReadsDoesNotDependOnTheUsersSettings) {
  for (const Strings& words :
       {WorkerLaunch(Good({"allreduce"}), "w"),
        ScalingLaunch(Good({"scaling", "--np", "2", "x.py"}), RankCount{2, false})}) {
    EXPECT_GT(Find(words, {"--show-ranks", "all"}), 0);
  }
  EXPECT_THAT(Error({"allreduce", "-m"}), HasSubstr("--module cannot be given"));
  EXPECT_THAT(Error({"allreduce", "--show-ranks", "0"}), HasSubstr("cannot be given"));
}

TEST(BenchCommands, AChoiceOfHostsIsNotForARunOnThisMachine) {
  const Options options = Good({"scaling", "--np", "-2,2", "--include", "a:0", "-H", "a", "x"});
  EXPECT_EQ(Find(ScalingLaunch(options, options.counts[0]), {"--include"}), -1);
  EXPECT_GT(Find(ScalingLaunch(options, options.counts[1]), {"--include", "a:0"}), 0);
}

TEST(BenchCommands, TheMannerIsTheWorkersOwnChoiceUnlessTheUserSaysIt) {
  for (const char* manner : {"--pipelined=on", "--pipelined=off"}) {
    EXPECT_EQ(Find(WorkerLaunch(Good({"allreduce"}), "w"), {manner}), -1);
  }
  EXPECT_NE(Find(WorkerLaunch(Good({"allreduce", "--pipelined"}), "w"), {"--pipelined=on"}), -1);
  EXPECT_NE(Find(WorkerLaunch(Good({"allreduce", "--pipelined=no"}), "w"), {"--pipelined=off"}),
            -1);
  EXPECT_THAT(Error({"allreduce", "--pipelined=perhaps"}), HasSubstr("--pipelined"));
}

TEST(BenchCommands, PairsAreOneRankANodeUnlessTheUserSaysHowMany) {
  EXPECT_NE(Find(WorkerLaunch(Good({"p2p", "-H", "a,b"}), "w"), {"--ppn", "1"}), -1);
  for (const Strings& given :
       {Strings{"-np", "-4"}, Strings{"--ppn", "2"}, Strings{"--map-by", "node"}}) {
    Strings args = {"p2p"};
    args.insert(args.end(), given.begin(), given.end());
    EXPECT_EQ(Find(WorkerLaunch(Good(args), "w"), {"--ppn", "1"}), -1);
  }
  // The value of a flag is not a flag.
  EXPECT_NE(Find(WorkerLaunch(Good({"p2p", "--wdir", "--np"}), "w"), {"--ppn", "1"}), -1);
}

TEST(BenchCommands, ALocalRunHasNoFlagsOfHosts) {
  Options options = Good({"scaling", "--np", "-2,4", "-H", "a:2,b:2", "--rsh", "x {host}", "--ppn",
                          "2", "--grace", "1s", "-x", "A=1", "--", "prog"});
  const Strings here = ScalingLaunch(options, options.counts[0]);
  EXPECT_EQ(Find(here, {"--hosts"}), -1);
  EXPECT_EQ(Find(here, {"--rsh"}), -1);
  EXPECT_EQ(Find(here, {"--ppn"}), -1);
  EXPECT_NE(Find(here, {"--grace", "1s", "--export", "A=1", "--np", "-2"}), -1);
  const Strings there = ScalingLaunch(options, options.counts[1]);
  EXPECT_NE(Find(there, {"--hosts", "a:2,b:2"}), -1);
  EXPECT_NE(Find(there, {"--np", "4"}), -1);
  EXPECT_NE(Find(there, {"--", "prog"}), -1);
}

TEST(BenchCommands, ThePredictionMeasuresWholeElements) {
  Options options = Good({"scaling", "--np", "2", "--", "prog"});
  EXPECT_NE(Find(PredictionLaunch(options, options.counts[0], "w", 4095.5), {"--sizes", "4096"}),
            -1);
}

}  // namespace
}  // namespace dtrain::bench
