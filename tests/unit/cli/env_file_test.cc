// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "launcher/cli/forwarded_env.h"

namespace dtrain::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Strings = std::vector<std::string>;

class EnvFileTest : public testing::Test {
 protected:
  EnvFileTest() {
    surroundings_.environment = {"MINE=own value", "EMPTY="};
    surroundings_.read = [this](const std::string& path) -> absl::StatusOr<std::string> {
      const auto it = files_.find(path);
      if (it == files_.end()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
      return it->second;
    };
  }
  Strings Variables(const std::string& text) {
    files_["f"] = text;
    const auto variables = ReadEnvFiles({"f"}, surroundings_);
    EXPECT_TRUE(variables.ok()) << variables.status();
    return variables.ok() ? *variables : Strings{};
  }
  std::string Error(const std::string& text) {
    files_["f"] = text;
    const auto variables = ReadEnvFiles({"f"}, surroundings_);
    EXPECT_EQ(variables.status().code(), absl::StatusCode::kInvalidArgument) << text;
    return std::string(variables.status().message());
  }

  Surroundings surroundings_;
  std::map<std::string, std::string> files_;
};

TEST_F(EnvFileTest, ValuesAreTakenAsTheyStand) {
  EXPECT_THAT(Variables("A=1\n  B=two words  \nC='x' \"y\" # z\nD=a=b\nE=\nF=$HOME\\n"),
              ElementsAre("A=1", "B=two words  ", "C='x' \"y\" # z", "D=a=b", "E=", "F=$HOME\\n"));
}

TEST_F(EnvFileTest, CommentsEmptyLinesCarriageReturnsAndAByteOrderMarkAreSkipped) {
  EXPECT_THAT(Variables("\xEF\xBB\xBF# first\r\n\r\n \t\n\t# more\r\nA=1\r\nB=2"),
              ElementsAre("A=1", "B=2"));
  EXPECT_THAT(Variables(""), IsEmpty());
}

TEST_F(EnvFileTest, ANameAlonePassesOnOnesOwnVariableOrNothing) {
  EXPECT_THAT(Variables("MINE\nEMPTY\nUNKNOWN\nMIN\n"), ElementsAre("MINE=own value", "EMPTY="));
}

TEST_F(EnvFileTest, FilesFollowEachOther) {
  files_["a"] = "A=1\nB=1\n";
  files_["b"] = "A=2\n";
  const auto variables = ReadEnvFiles({"a", "b"}, surroundings_);
  ASSERT_TRUE(variables.ok());
  EXPECT_THAT(*variables, ElementsAre("A=1", "B=1", "A=2"));
}

TEST_F(EnvFileTest, AMistakeIsNamedByFileAndLine) {
  EXPECT_THAT(Error("A=1\n\n=x\n"), HasSubstr("--env-file: f:3: no name before the ="));
  EXPECT_THAT(Error("export A=1\n"), HasSubstr("f:1: blanks in the name of a variable"));
  EXPECT_THAT(Error("A = 1\n"), HasSubstr("f:1: blanks in the name"));
  EXPECT_THAT(Error("#\n\xC3\xA4=1\n"), HasSubstr("f:2: not a name that a variable can have"));
  EXPECT_THAT(Error(absl::StrCat(std::string(300, 'A'), "=1")), HasSubstr("f:1: not a name"));
  EXPECT_THAT(std::string(ReadEnvFiles({"none"}, surroundings_).status().message()),
              HasSubstr("--env-file: cannot read none"));
}

// A key of several lines is what such files hold by mistake, and messages end up in logs.
TEST_F(EnvFileTest, NoMessageShowsAPartOfASecret) {
  EXPECT_THAT(Error("KEY=-----BEGIN KEY-----\nSECRET SECRET\n"), Not(HasSubstr("SECRET")));
  EXPECT_THAT(Error("=SECRET\n"), Not(HasSubstr("SECRET")));
  EXPECT_THAT(Error("SECRET\x01\n"), Not(HasSubstr("SECRET")));
}

}  // namespace
}  // namespace dtrain::cli
