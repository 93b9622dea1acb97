// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/words.h"

#include <gtest/gtest.h>

#include <set>

#include "launcher/cli/cli11.h"

namespace dtrain::cli {
namespace {

using Strings = std::vector<std::string>;

Words Split(const Strings& args) {
  absl::StatusOr<Words> words = SplitWords(LaunchFlags(), args);
  EXPECT_TRUE(words.ok()) << words.status();
  return words.ok() ? *words : Words{};
}

std::string Error(const Strings& args) {
  absl::StatusOr<Words> words = SplitWords(LaunchFlags(), args);
  return words.ok() ? "" : std::string(words.status().message());
}

TEST(WordsTest, OneFlagHasManySpellings) {
  for (const Strings& args :
       {Strings{"-np", "4"}, Strings{"-n", "4"}, Strings{"--np", "4"}, Strings{"-np=4"},
        Strings{"--np=4"}, Strings{"-n4"}, Strings{"-n=4"}, Strings{"--num-proc", "4"},
        Strings{"--num_proc=4"}, Strings{"-num_proc", "4"}}) {
    EXPECT_EQ(Split(args).flags, (Strings{"--np", "4"})) << args[0];
  }
  EXPECT_EQ(Split({"--nproc_per_node=8"}).flags, (Strings{"--ppn", "8"}));
  EXPECT_EQ(Split({"-hostfile", "f"}).flags, (Strings{"--hostfile", "f"}));
  EXPECT_EQ(Split({"-vq"}).flags, (Strings{"--verbose", "--quiet"}));
  EXPECT_EQ(Split({"-xNAME=a=b"}).flags, (Strings{"--export", "NAME=a=b"}));
  EXPECT_EQ(Split({"--oversubscribe=false"}).flags, (Strings{"--oversubscribe=false"}));
}

TEST(WordsTest, AColonBeginsAnotherProgramUnlessDashesStandBefore) {
  const Words two = Split({"-np", "1", "a", "x", ":", "-np", "1", "b"});
  EXPECT_EQ(two.command, (Strings{"a", "x"}));
  EXPECT_EQ(two.further, (Strings{"-np", "1", "b"}));
  EXPECT_EQ(Split({"a", ":", "b", ":", "c"}).further, (Strings{"b", ":", "c"}));
  EXPECT_EQ(Split({"--", "a", ":", "b"}).command, (Strings{"a", ":", "b"}));
  EXPECT_EQ(Split({"sh", "-c", ":"}).command, (Strings{"sh", "-c", ":"}));
  EXPECT_EQ(Split({":", "x"}).command, (Strings{":", "x"}));
}

TEST(WordsTest, ValuesMayBeginWithADashOrBeEmpty) {
  EXPECT_EQ(Split({"-np", "-4"}).flags, (Strings{"--np", "-4"}));
  EXPECT_EQ(Split({"--wdir="}).flags, (Strings{"--wdir", ""}));
  EXPECT_EQ(Split({"--wdir", "", "cmd"}).command, (Strings{"cmd"}));
}

TEST(WordsTest, TheCommandBeginsAtTheFirstWordAndIsUntouched) {
  Words words = Split({"-np", "2", "mpiprog", "-np", "9", "--hostfile", "--", "-x"});
  EXPECT_EQ(words.flags, (Strings{"--np", "2"}));
  EXPECT_EQ(words.command, (Strings{"mpiprog", "-np", "9", "--hostfile", "--", "-x"}));
  EXPECT_EQ(Split({"-np", "2", "--", "--odd-program", "--"}).command,
            (Strings{"--odd-program", "--"}));
  EXPECT_EQ(Split({"-", "x"}).command, (Strings{"-", "x"}));
  EXPECT_EQ(Split({"", "x"}).command, (Strings{"", "x"}));
}

// A9
TEST(WordsTest, AnUnknownFlagNamesTheNearest) {
  EXPECT_EQ(Error({"--hostfle", "f"}), "unknown flag --hostfle; did you mean --hostfile?");
  EXPECT_EQ(Error({"--start-timout=3"}),
            "unknown flag --start-timout; did you mean --start-timeout?");
  EXPECT_EQ(Error({"--pnp", "3"}), "unknown flag --pnp; did you mean --np?");
  EXPECT_EQ(Error({"--completely-else"}), "unknown flag --completely-else");
  EXPECT_EQ(Error({"-Z"}), "unknown flag -Z");
  EXPECT_EQ(Error({"-qZ"}), "unknown flag -qZ");
  EXPECT_EQ(Error({"--"}), "");
  EXPECT_EQ(Error({"--=3"}), "unknown flag --");
}

TEST(WordsTest, FlagsOfOtherLaunchersNameOurs) {
  EXPECT_EQ(Error({"--nproc", "4"}),
            "unknown flag --nproc; did you mean --np (in all) or --ppn (on each host)?");
  EXPECT_EQ(Error({"--num_gpus=4"}), "unknown flag --num_gpus; did you mean --ppn?");
  EXPECT_EQ(Error({"--process-count-per-node", "4"}),
            "unknown flag --process-count-per-node; did you mean --ppn?");
  EXPECT_EQ(Error({"--image", "x"}), "unknown flag --image; did you mean --container?");
  EXPECT_EQ(Error({"-f", "hosts"}), "unknown flag -f; did you mean --hostfile?");
  EXPECT_EQ(Error({"--rdzv_endpoint=h:1"}),
            "unknown flag --rdzv_endpoint; leave it out: one dtrain launch starts the ranks on all "
            "hosts and connects them");
  // A command without such flags has no use for the advice.
  const std::vector<Flag> flags = {{"--follow,-F", "Flags", "", "follow", nullptr}};
  const auto words = SplitWords(flags, {"--nproc", "4"});
  EXPECT_EQ(words.status().message(), "unknown flag --nproc");
}

TEST(WordsTest, AMissingValueSaysWhatIsWanted) {
  EXPECT_EQ(Error({"--hostfile"}), "--hostfile needs a value: --hostfile FILE");
  EXPECT_EQ(Error({"-n"}), "-n needs a value: -n N");
}

TEST(WordsTest, EveryFlagHasOneNameAndAHelp) {
  std::set<std::string> seen;
  for (const std::string& name : LongNames(LaunchFlags())) {
    EXPECT_TRUE(seen.insert(name).second) << name;
  }
  std::string help = FormatFlags(LaunchFlags());
  for (const std::string& name : seen) EXPECT_NE(help.find("--" + name), std::string::npos);
  for (const Flag& flag : LaunchFlags()) {
    std::string first_line(flag.help.substr(0, flag.help.find('\n')));
    EXPECT_NE(help.find(first_line), std::string::npos) << first_line;
  }
}

TEST(WordsTest, TheParserKeepsValuesExactly) {
  Strings words = {"--export", "A=[1,2]", "--export", "",   "--rsh",    "a 'b' \"c\" {host}",
                   "--np",     "1",       "--np",     "-2", "--verbose"};
  auto given = ParseFlags(LaunchFlags(), words);
  ASSERT_TRUE(given.ok()) << given.status();
  Strings seen;
  for (const Given& one : *given) {
    seen.push_back(std::string(FlagName(LaunchFlags()[one.flag])) + ":" + one.value);
  }
  EXPECT_EQ(seen, (Strings{"np:-2", "export:A=[1,2]", "export:", "rsh:a 'b' \"c\" {host}",
                           "verbose:true"}));
}

}  // namespace
}  // namespace dtrain::cli
