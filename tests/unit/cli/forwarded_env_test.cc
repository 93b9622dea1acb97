// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/forwarded_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace dtrain::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Strings = std::vector<std::string>;

Strings Show(const ForwardedEnv& env) {
  Strings out;
  for (const v1::EnvVar& variable : env.variables) {
    out.push_back(absl::StrCat(variable.name(), "=", variable.value()));
  }
  return out;
}

Strings Forward(const Strings& environment, const ForwardOptions& options = {}) {
  absl::StatusOr<ForwardedEnv> env = BuildForwardedEnv(environment, options);
  EXPECT_TRUE(env.ok()) << env.status();
  return env.ok() ? Show(*env) : Strings{};
}

std::string Error(const Strings& environment, const ForwardOptions& options) {
  absl::StatusOr<ForwardedEnv> env = BuildForwardedEnv(environment, options);
  return env.ok() ? "" : std::string(env.status().message());
}

TEST(ForwardedEnvTest, ForwardsWhatDoesNotBelongToThisHost) {
  EXPECT_THAT(Forward({"PATH=/bin", "HOSTNAME=here", "SSH_AUTH_SOCK=/s", "NCCL_DEBUG=INFO"}),
              ElementsAre("NCCL_DEBUG=INFO", "PATH=/bin"));
}

TEST(ForwardedEnvTest, DropsWhatAnOuterLauncherSetForItsOwnWorkers) {
  EXPECT_THAT(
      Forward({"RANK=3", "SLURM_PROCID=1", "SLURM_JOB_ID=77", "PMI_FD=5", "OMPI_COMM_WORLD_RANK=1",
               "OMPI_MCA_btl=tcp", "HOROVOD_RANK=1", "HOROVOD_TIMELINE=t"}),
      ElementsAre("HOROVOD_TIMELINE=t", "OMPI_MCA_btl=tcp", "SLURM_JOB_ID=77"));
}

TEST(ForwardedEnvTest, DropsFlagsGivenAsVariables) {
  EXPECT_THAT(
      Forward({"DTRAIN_NP=4", "DTRAIN_START_TIMEOUT=3", "DTRAIN_CONFIG=/c", "DTRAIN_OTHER=kept"}),
      ElementsAre("DTRAIN_OTHER=kept"));
}

// As a rank beside the launcher would otherwise have what those elsewhere lack.
TEST(ForwardedEnvTest, ForwardsExportedShellFunctions) {
  EXPECT_THAT(Forward({"BASH_FUNC_x%%=() { :; }"}), ElementsAre("BASH_FUNC_x%%=() { :; }"));
}

// A12
TEST(ForwardedEnvTest, KeepsAnyBytesOfAValue) {
  std::string value("a\nb\xff=c\t\"", 8);
  EXPECT_THAT(Forward({absl::StrCat("ODD=", value), "EMPTY=", "no equals sign", "=nameless"}),
              ElementsAre("EMPTY=", absl::StrCat("ODD=", value)));
}

TEST(ForwardedEnvTest, TheFirstOfTwoEntriesCountsAsItDoesForGetenv) {
  EXPECT_THAT(Forward({"A=1", "A=2"}), ElementsAre("A=1"));
}

TEST(ForwardedEnvTest, ExportTakesOursOrTheGivenValueAndIsNeverFiltered) {
  ForwardOptions options;
  options.exports = {"HOSTNAME", "RANK=9", "X=a=b", "X=last", "EMPTY="};
  absl::StatusOr<ForwardedEnv> env = BuildForwardedEnv({"HOSTNAME=here", "X=old"}, options);
  ASSERT_TRUE(env.ok()) << env.status();
  EXPECT_THAT(Show(*env), ElementsAre("EMPTY=", "HOSTNAME=here", "RANK=9", "X=last"));
  EXPECT_THAT(env->explicit_names, ElementsAre("EMPTY", "HOSTNAME", "RANK", "X"));
}

TEST(ForwardedEnvTest, NoneForwardsTheExportsOnly) {
  EXPECT_THAT(Forward({"A=1", "B=2"}, {false, {"B"}, 0}), ElementsAre("B=2"));
}

// A12
TEST(ForwardedEnvTest, ExportsThatCannotBeAreRefusedByName) {
  EXPECT_THAT(Error({}, {true, {"NOPE"}, 0}), HasSubstr("-x NOPE: this variable is not set here"));
  EXPECT_THAT(Error({}, {true, {"=x"}, 0}), HasSubstr("the name is empty"));
  EXPECT_THAT(Error({}, {true, {""}, 0}), HasSubstr("the name is empty"));
  EXPECT_THAT(Error({}, {true, {"A B=1"}, 0}), HasSubstr("\"A B\" is not a name"));
  EXPECT_THAT(Error({}, {true, {"A\x1b=1"}, 0}), HasSubstr("\"A\\x1b\" is not a name"));
}

// Names travel as text; one that is not would make the whole message unreadable.
TEST(ForwardedEnvTest, NamesThatAreNotPlainTextStayHere) {
  EXPECT_THAT(Forward({"G\xff=1", "OK=1"}), ElementsAre("OK=1"));
  EXPECT_THAT(Error({}, {true, {"G\xff=1"}, 0}), HasSubstr("is not a name"));
}

// A12
TEST(ForwardedEnvTest, AVariableLinuxCannotExecuteWithIsRefusedWithTheCap) {
  std::string fits(kMaxVariableBytes - 5, 'x');  // BIG=...\0
  EXPECT_THAT(Forward({"BIG=" + fits}), ElementsAre("BIG=" + fits));
  EXPECT_THAT(
      Error({"BIG=" + fits + "x"}, {}),
      HasSubstr("the environment variable BIG has 131073 bytes; Linux takes at most 131072"));
}

// A12
TEST(ForwardedEnvTest, TooMuchInAllIsRefusedWithTheCapAndTheBiggest) {
  Strings environment = {absl::StrCat("HUGE=", std::string(100000, 'x'))};
  for (int i = 0; i < 100000; ++i) environment.push_back(absl::StrCat("V", i, "=", i));
  std::string error = Error(environment, {});
  EXPECT_THAT(error, HasSubstr("at most 1572864"));
  EXPECT_THAT(error, HasSubstr("The biggest is HUGE"));
  EXPECT_THAT(Error({"A=1"}, {true, {}, kMaxEnvironmentBytes}), HasSubstr("at most 1572864"));
}

TEST(ForwardedEnvTest, AFlagsVariableIsItsNameInCapitals) {
  EXPECT_EQ(FlagVariable("start-timeout"), "DTRAIN_START_TIMEOUT");
}

}  // namespace
}  // namespace dtrain::cli
