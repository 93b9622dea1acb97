// SPDX-License-Identifier: Apache-2.0
// Whether a checkpoint is complete that was written since the workers were started, by a real
// shepherd.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/component/shepherd/harness.h"

namespace dtrain::shepherd {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class CheckpointTest : public ShepherdTest {
 protected:
  CheckpointTest() {
    std::string folder = absl::StrCat(testing::TempDir(), "/checkpointXXXXXX");
    folder_ = mkdtemp(folder.data());
    limits_.still = std::chrono::milliseconds(300);
  }
  ~CheckpointTest() override { fs::remove_all(folder_); }

  // With that in the variable of the first of two ranks; empty: without it.
  void Run(const std::string& file, const std::string& script = "exec sleep 600") {
    v1::JobPart part = Shell(2, script);
    part.mutable_programs(0)->set_working_directory(folder_.string());
    if (!file.empty()) {
      v1::EnvVar* variable = part.add_env();
      variable->set_name("DTRAIN_CHECKPOINT_FILE");
      variable->set_value(file);
    }
    Start(std::move(part));
    ASSERT_TRUE(UntilStarted());
  }
  v1::Checkpoint Look() {
    const size_t before = checkpoints_.size();
    v1::JobRequest request;
    request.mutable_look_at_checkpoint();
    Send(request);
    EXPECT_TRUE(Until([&] { return checkpoints_.size() > before; }));
    return checkpoints_.empty() ? v1::Checkpoint() : checkpoints_.back();
  }
  void Write(const std::string& name, std::chrono::seconds age = std::chrono::seconds(0)) const {
    const fs::path path = folder_ / name;
    std::ofstream(path) << "weights";
    if (age.count() == 0) return;
    const timespec when{time(nullptr) - static_cast<time_t>(age.count()), 0};
    const timespec times[] = {when, when};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  void End() {
    Stop(0);
    EXPECT_TRUE(UntilFinished());
  }

  fs::path folder_;
};

TEST_F(CheckpointTest, OnlyOneThatWasWrittenSinceTheStartIsNewer) {
  Write("model", std::chrono::seconds(60));
  Run((folder_ / "model").string());
  EXPECT_FALSE(Look().newer());
  // Restored, as it was long ago.
  Write("model", std::chrono::seconds(3600));
  EXPECT_FALSE(Look().newer());
  Write("model");
  EXPECT_TRUE(Look().newer());
  for (const v1::Checkpoint& answer : checkpoints_) EXPECT_EQ(answer.trouble(), "");
  End();
}

TEST_F(CheckpointTest, AFolderIsCompleteWhenNoneOfItsPartsIsWrittenAnyMore) {
  fs::create_directories(folder_ / "step9" / "shards");
  Run("step9", "exec 3>step9/shards/1; echo ready; exec sleep 600");
  ASSERT_TRUE(Until([this] { return Out() == "ready\n"; }));
  EXPECT_FALSE(Look().newer()) << "it has a part open for writing";
  Write("step9/.complete");
  EXPECT_TRUE(Look().newer()) << "the program says so";
  fs::remove(folder_ / "step9" / ".complete");
  Write("step9.complete", std::chrono::seconds(60));
  EXPECT_FALSE(Look().newer()) << "of an earlier one";
  Write("step9.complete");
  EXPECT_TRUE(Look().newer());
  End();
}

TEST_F(CheckpointTest, OneThatGrowsElsewhereIsNotComplete) {
  fs::create_directories(folder_ / "step9");
  // On a busy machine, too, the thread writes within that time.
  limits_.still = std::chrono::milliseconds(1500);
  Run("step9");
  // As another host writes it: nobody here has it open. The first part is there before anybody
  // looks, however late the thread begins.
  Write("step9/0");
  std::atomic<bool> done = false;
  std::thread other([&] {
    for (int part = 1; !done; ++part) {
      Write(absl::StrCat("step9/", part));
      (void)poll(nullptr, 0, 20);
    }
  });
  EXPECT_FALSE(Look().newer());
  done = true;
  other.join();
  const v1::Checkpoint still = Look();
  EXPECT_TRUE(still.newer()) << still.trouble();
  End();
}

TEST_F(CheckpointTest, ARelativeNameIsInTheWorkingDirectory) {
  Run("model");
  const v1::Checkpoint none = Look();
  EXPECT_FALSE(none.newer());
  EXPECT_EQ(none.trouble(), "") << "it has written none yet";
  Write("model");
  EXPECT_TRUE(Look().newer());
  End();
}

TEST_F(CheckpointTest, WhatCannotBeKnownIsTold) {
  Run("loop");
  fs::create_symlink("loop", folder_ / "loop");
  const v1::Checkpoint answer = Look();
  EXPECT_FALSE(answer.newer());
  EXPECT_THAT(answer.trouble(),
              HasSubstr(absl::StrCat("cannot look at the checkpoint ", folder_.string(),
                                     "/loop: ", "Too many levels of symbolic links")));
  End();
}

TEST_F(CheckpointTest, WithoutTheVariableItSaysSo) {
  Run("");
  EXPECT_THAT(Look().trouble(), HasSubstr("DTRAIN_CHECKPOINT_FILE is not set for rank 0"));
  End();
}

// A launcher that comes later asks again, of the same start.
TEST_F(CheckpointTest, AnotherLauncherIsAnsweredToo) {
  generation_ = 1;
  Keep(std::chrono::seconds(30));
  Write("model", std::chrono::seconds(60));
  Run("model");
  EXPECT_FALSE(Look().newer());
  Succeed();
  ASSERT_TRUE(UntilRetold());
  EXPECT_FALSE(Look().newer());
  Write("model");
  EXPECT_TRUE(Look().newer());
  Stop(0);
  ASSERT_TRUE(Until([this] { return finished_; }));
  Release();
  EXPECT_TRUE(ShepherdExited());
}

}  // namespace
}  // namespace dtrain::shepherd
