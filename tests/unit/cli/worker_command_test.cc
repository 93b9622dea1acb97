// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/worker_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace dtrain::cli {
namespace {

using testing::ElementsAre;
using Strings = std::vector<std::string>;

class WorkerCommandTest : public testing::Test {
 protected:
  WorkerCommandTest() {
    surroundings_.environment = {"PATH=/usr/bin:tools"};
    surroundings_.is_script = [this](const std::string& path) { return scripts_.count(path) > 0; };
  }
  Strings Command(Strings words, bool module = false) {
    return WorkerCommand(std::move(words), module, "/home/me", surroundings_);
  }

  Surroundings surroundings_;
  std::set<std::string> scripts_;
};

TEST_F(WorkerCommandTest, APythonFileGetsAnInterpreterWithItsWordsUntouched) {
  EXPECT_THAT(Command({"train.py", "-u", "", "a b"}),
              ElementsAre("python3", "-u", "train.py", "-u", "", "a b"));
  EXPECT_THAT(Command({"src/train.py"}), ElementsAre("python3", "-u", "src/train.py"));
}

TEST_F(WorkerCommandTest, OtherWordsAreLeftAlone) {
  for (const char* word : {"./program", "python3", "train.pyc", "train.py2", "py", "dir.py/run"}) {
    EXPECT_THAT(Command({word, "train.py"}), ElementsAre(word, "train.py"));
  }
  EXPECT_THAT(Command({}), ElementsAre());
  EXPECT_THAT(Command({}, /*module=*/true), ElementsAre());
}

TEST_F(WorkerCommandTest, AScriptThatTheKernelCanRunKeepsTheInterpreterOfItsFirstLine) {
  scripts_ = {"/home/me/train.py", "/abs/train.py", "/usr/bin/found.py", "/home/me/tools/mine.py"};
  EXPECT_THAT(Command({"./train.py"}), ElementsAre("python3", "-u", "./train.py"));
  scripts_.insert("/home/me/./train.py");
  EXPECT_THAT(Command({"./train.py"}), ElementsAre("./train.py"));
  EXPECT_THAT(Command({"/abs/train.py"}), ElementsAre("/abs/train.py"));
  EXPECT_THAT(Command({"found.py"}), ElementsAre("found.py"));
  EXPECT_THAT(Command({"mine.py"}), ElementsAre("mine.py"));
}

// PATH, where execvp would look for it, does not have the working directory.
TEST_F(WorkerCommandTest, AScriptOfTheWorkingDirectoryIsNotFoundByItsBareName) {
  scripts_ = {"/home/me/train.py"};
  EXPECT_THAT(Command({"train.py"}), ElementsAre("python3", "-u", "train.py"));
  surroundings_.environment = {};
  scripts_ = {"/usr/bin/train.py"};
  EXPECT_THAT(Command({"train.py"}), ElementsAre("python3", "-u", "train.py"));
}

TEST_F(WorkerCommandTest, AModuleIsRunByName) {
  scripts_ = {"/home/me/a.py"};
  EXPECT_THAT(Command({"pkg.train", "--lr", "3"}, /*module=*/true),
              ElementsAre("python3", "-u", "-m", "pkg.train", "--lr", "3"));
  EXPECT_THAT(Command({"./a.py"}, /*module=*/true), ElementsAre("python3", "-u", "-m", "./a.py"));
}

TEST_F(WorkerCommandTest, PythonExecNamesTheInterpreterAsOneWord) {
  surroundings_.environment.push_back("PYTHON_EXEC=/opt/my python");
  EXPECT_THAT(Command({"train.py"}), ElementsAre("/opt/my python", "-u", "train.py"));
  EXPECT_THAT(Command({"m"}, /*module=*/true), ElementsAre("/opt/my python", "-u", "-m", "m"));
  surroundings_.environment = {"PYTHON_EXEC="};
  EXPECT_THAT(Command({"train.py"}), ElementsAre("python3", "-u", "train.py"));
}

// `python3 -cprint(1).py` would run its name.
TEST_F(WorkerCommandTest, AScriptWhoseNameBeginsWithADashIsNoOptionOfPython) {
  EXPECT_THAT(Command({"-cprint(1).py"}), ElementsAre("python3", "-u", "./-cprint(1).py"));
}

}  // namespace
}  // namespace dtrain::cli
