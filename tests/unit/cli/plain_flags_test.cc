// SPDX-License-Identifier: Apache-2.0
// Flags of `dtrain launch` that people know from python, docker, deepspeed and mpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "launcher/cli/options.h"

namespace dtrain::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using Strings = std::vector<std::string>;

class PlainFlagsTest : public testing::Test {
 protected:
  PlainFlagsTest() {
    surroundings_.working_directory = "/here";
    surroundings_.read = [this](const std::string& path) -> absl::StatusOr<std::string> {
      const auto it = files_.find(path);
      if (it == files_.end()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
      return it->second;
    };
    surroundings_.is_script = [](const std::string& path) { return path == "/here/sub/run.py"; };
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
  Strings Words(Strings args) {
    const LaunchOptions options = Launch(std::move(args));
    if (options.job.part.programs().empty()) return {};
    const auto& words = options.job.part.programs(0).argv();
    return {words.begin(), words.end()};
  }
  std::map<std::string, std::string> Env(const LaunchOptions& options) {
    std::map<std::string, std::string> env;
    for (const v1::EnvVar& var : options.job.part.env()) env[var.name()] = var.value();
    return env;
  }

  Surroundings surroundings_;
  std::map<std::string, std::string> files_;
};

TEST_F(PlainFlagsTest, PythonFilesAndModulesAreTheCommand) {
  EXPECT_THAT(Words({"-np", "4", "train.py", "-m", "--lr=3"}),
              ElementsAre("python3", "-u", "train.py", "-m", "--lr=3"));
  EXPECT_THAT(Words({"-np", "4", "-m", "pkg.train", "--lr", "3"}),
              ElementsAre("python3", "-u", "-m", "pkg.train", "--lr", "3"));
  EXPECT_THAT(Words({"--module", "-np", "4", "--", "pkg.train"}),
              ElementsAre("python3", "-u", "-m", "pkg.train"));
  EXPECT_THAT(Words({"-qm", "pkg"}), ElementsAre("python3", "-u", "-m", "pkg"));
}

TEST_F(PlainFlagsTest, AScriptIsLookedForWhereTheWorkersAre) {
  EXPECT_THAT(Words({"./run.py"}), ElementsAre("python3", "-u", "./run.py"));
  EXPECT_THAT(Words({"--wdir", "sub", "run.py"}), ElementsAre("python3", "-u", "run.py"));
  EXPECT_THAT(Words({"sub/run.py"}), ElementsAre("sub/run.py"));
}

TEST_F(PlainFlagsTest, TheModuleIsTheCommandAndNotAValue) {
  EXPECT_THAT(Error({"--module=pkg.train", "x"}),
              HasSubstr("write the module where the command begins: -m pkg.train"));
  EXPECT_THAT(Error({"-m"}), HasSubstr("no command to run"));
  EXPECT_THAT(Error({"-m", ""}), HasSubstr("name is empty"));
  EXPECT_THAT(Words({"--module=false", "pkg"}), ElementsAre("pkg"));
}

// Nor a setting, which would change the commands of all launches.
TEST_F(PlainFlagsTest, TheModuleFlagIsOnTheCommandLineOnly) {
  surroundings_.environment = {"DTRAIN_MODULE=1"};
  EXPECT_THAT(Words({"pkg"}), ElementsAre("pkg"));
  files_["/c"] = "module = true\n";
  EXPECT_THAT(Error({"--config", "/c", "pkg"}), HasSubstr("/c:1: unknown key module"));
}

TEST_F(PlainFlagsTest, EachProgramIsPythonsOrNot) {
  files_["f"] = "A=1\n";
  const LaunchOptions o = Launch({"-np", "1", "--env-file", "f", "a.py", ":", "-np", "1", "-m", "b",
                                  "x", ":", "-np", "1", "/here/sub/run.py"});
  ASSERT_EQ(o.job.part.programs_size(), 3);
  EXPECT_THAT(o.job.part.programs(0).argv(), ElementsAre("python3", "-u", "a.py"));
  EXPECT_THAT(o.job.part.programs(1).argv(), ElementsAre("python3", "-u", "-m", "b", "x"));
  EXPECT_THAT(o.job.part.programs(2).argv(), ElementsAre("/here/sub/run.py"));
  // A file before the first program is for all.
  EXPECT_THAT(Env(o), ElementsAre(Pair("A", "1")));
  EXPECT_THAT(Error({"-np", "1", "a", ":", "-np", "1", "--env-file", "f", "b"}),
              HasSubstr("program 2: unknown flag --env-file"));
}

TEST_F(PlainFlagsTest, EnvFilesAddUpAndExportsWin) {
  surroundings_.environment = {"MINE=m", "RANK=7"};
  files_["a"] = "A=1\nB=1\nC=1\nMINE\nRANK=3\n";
  files_["b"] = "# two\nB=2\n";
  const LaunchOptions o =
      Launch({"-x", "C=3", "--env-file", "a", "--env-file", "b", "--env", "none", "x"});
  EXPECT_THAT(Env(o), ElementsAre(Pair("A", "1"), Pair("B", "2"), Pair("C", "3"), Pair("MINE", "m"),
                                  Pair("RANK", "3")));
  // As those of -x, dtrain replaces none of them.
  EXPECT_EQ(o.job.part.explicit_env_size(), 5);
  EXPECT_THAT(Error({"--env-file", "b", "--env-file", "none", "x"}),
              HasSubstr("--env-file: cannot read none"));
  files_["b"] = "\nA B=1\n";
  EXPECT_THAT(Error({"--env-file", "b", "x"}), HasSubstr("--env-file: b:2: blanks"));
  files_["b"] = absl::StrCat("BIG=", std::string(200000, 'x'));
  EXPECT_THAT(Error({"--env-file", "b", "x"}), HasSubstr("variable BIG has 200005 bytes"));
  EXPECT_THAT(Error({"--env-file=", "x"}), HasSubstr("--env-file: it is empty"));
}

TEST_F(PlainFlagsTest, HostsAreChosenOnceOrNot) {
  EXPECT_EQ(Launch({"--include", "a:0@b", "x"}).include, "a:0@b");
  EXPECT_EQ(Launch({"--exclude", "a", "-N", "2", "x"}).exclude, "a");
  EXPECT_THAT(Error({"--include", "a", "--exclude", "b", "x"}), HasSubstr("contradict"));
}

TEST_F(PlainFlagsTest, RanksToShowAreNumbersAndRanges) {
  EXPECT_THAT(Launch({"--show-ranks", "0,8-15", "x"}).output.shown.ranks,
              ElementsAre(Pair(0, 0), Pair(8, 15)));
  EXPECT_THAT(Launch({"--show-ranks", "1048575", "x"}).output.shown.ranks,
              ElementsAre(Pair(1048575, 1048575)));
  surroundings_.environment = {"DTRAIN_SHOW_RANKS=3"};
  EXPECT_THAT(Launch({"--show-ranks", "all", "x"}).output.shown.ranks, testing::IsEmpty());
  for (const char* bad : {"", ",", "1,", "a", "-1", "3-1", "0-", "1-2-3", " 1", "1048576",
                          "99999999999999999999", "0x1"}) {
    EXPECT_THAT(Error({absl::StrCat("--show-ranks=", bad), "x"}),
                HasSubstr("is not a number such as 8 or a range such as 0-7"))
        << bad;
  }
}

TEST_F(PlainFlagsTest, FilesAreNamedByAPatternOrADirectory) {
  const LaunchOptions o = Launch({"--output", "logs/%h-%r.log", "x"});
  ASSERT_TRUE(o.output.files.has_value());
  EXPECT_EQ(o.output.files->text(), "logs/%h-%r.log");
  EXPECT_EQ(o.output.files->folder(), "logs");
  EXPECT_THAT(Error({"--output", "%q", "x"}), HasSubstr("--output: \"%q\" is not a placeholder"));
  EXPECT_THAT(Error({"--output", "logs/", "x"}), HasSubstr("names a directory"));
  EXPECT_THAT(Error({"--output", "%r", "--log-dir", "d", "x"}),
              HasSubstr("--log-dir and --output contradict each other"));
}

TEST_F(PlainFlagsTest, AllOfThemAreVariablesAndKeysOfTheConfigurationFile) {
  files_["a"] = "A=1\n";
  files_["b"] = "B=1\n";
  files_["/c"] =
      "include = \"h:0\"\nshow-ranks = [0, 3]\noutput = \"%r.log\"\nenv-file = [\"a\", \"b\"]\n";
  const auto check = [&](const LaunchOptions& o) {
    EXPECT_EQ(o.include, "h:0");
    EXPECT_THAT(o.output.shown.ranks, ElementsAre(Pair(0, 0), Pair(3, 3)));
    EXPECT_TRUE(o.output.files.has_value());
    EXPECT_THAT(Env(o), ElementsAre(Pair("A", "1"), Pair("B", "1")));
  };
  check(Launch({"--config", "/c", "x"}));
  surroundings_.environment = {"DTRAIN_INCLUDE=h:0", "DTRAIN_SHOW_RANKS=0,3",
                               "DTRAIN_OUTPUT=%r.log", "DTRAIN_ENV_FILE=a,b"};
  check(Launch({"x"}));
  // What the command line says makes void what is weaker and says otherwise.
  const LaunchOptions o = Launch({"--exclude", "g", "--log-dir", "d", "x"});
  EXPECT_EQ(o.include, "");
  EXPECT_FALSE(o.output.files.has_value());
}

}  // namespace
}  // namespace dtrain::cli
