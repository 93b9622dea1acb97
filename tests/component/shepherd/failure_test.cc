// SPDX-License-Identifier: Apache-2.0
// What a message says of a program that cannot be started.
#include "agent/shepherd/failure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/os/find_program.h"

namespace dtrain::shepherd {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class ProgramFailureTest : public ::testing::Test {
 protected:
  ProgramFailureTest() {
    std::string name = ::testing::TempDir() + "dtrain-failure-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  ~ProgramFailureTest() override { std::filesystem::remove_all(directory_); }

  void MakeFile(const std::string& name, mode_t mode) {
    std::ofstream(directory_ / name) << "#!/bin/sh\n";
    ASSERT_EQ(chmod((directory_ / name).c_str(), mode), 0);
  }
  std::string MessageFor(const std::string& program, const std::string& path = "/usr/bin:/bin") {
    v1::Program run;
    run.add_argv(program);
    run.set_working_directory(directory_.string());
    os::SpawnError error;
    auto found = os::FindProgram(program, path, run.working_directory(), &error);
    EXPECT_FALSE(found.ok());
    return SpawnFailure(v1::JobPart(), run, error, found.status()).message();
  }

  std::filesystem::path directory_;
};

TEST_F(ProgramFailureTest, APythonProgramLacksItsInterpreter) {
  MakeFile("train.py", 0644);
  EXPECT_THAT(MessageFor("train.py"), EndsWith("did you mean `python3 train.py`?"));
  EXPECT_THAT(MessageFor("elsewhere.py"), EndsWith("did you mean `python3 elsewhere.py`?"));
  EXPECT_THAT(MessageFor("./train.py"), EndsWith("did you mean `python3 ./train.py`?"));
}

TEST_F(ProgramFailureTest, AProgramInTheWorkingDirectoryLacksItsDot) {
  MakeFile("solver", 0755);
  EXPECT_THAT(MessageFor("solver"), EndsWith("did you mean `./solver`?"));
  EXPECT_THAT(MessageFor("no-such-program"), Not(HasSubstr("did you mean")));
}

TEST_F(ProgramFailureTest, PathIsNotPrintedWhole) {
  std::string path = "/usr/bin";
  for (int i = 0; i < 40; ++i) path += ":/opt/software/module" + std::to_string(i) + "/bin";
  const std::string message = MessageFor("no-such-program", path);
  EXPECT_THAT(message, HasSubstr("in PATH (/usr/bin:"));
  EXPECT_LT(message.size(), 300u);
}

}  // namespace
}  // namespace dtrain::shepherd
