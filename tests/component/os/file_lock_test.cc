// SPDX-License-Identifier: Apache-2.0
#include "common/os/file_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "common/os/fd.h"

namespace dtrain::os {
namespace {

class FileLockTest : public testing::Test {
 protected:
  FileLockTest() {
    char path[] = "/tmp/dtrain-lock-XXXXXX";
    dir_ = mkdtemp(path);
    path_ = dir_ + "/lock";
  }
  ~FileLockTest() override { std::filesystem::remove_all(dir_); }

  std::optional<FileLock> Take(Duration patience = Duration::zero()) {
    auto lock = FileLock::Take(path_, "us", patience);
    if (lock.ok()) return *std::move(lock);
    EXPECT_TRUE(absl::IsUnavailable(lock.status())) << lock.status();
    return std::nullopt;
  }
  bool IsHeld() {
    const auto held = FileLock::IsHeld(path_);
    EXPECT_TRUE(held.ok()) << held.status();
    return held.ok() && *held;
  }

  std::string dir_;
  std::string path_;
};

TEST_F(FileLockTest, OneHasIt) {
  EXPECT_FALSE(IsHeld());
  auto lock = Take();
  ASSERT_TRUE(lock.has_value());
  EXPECT_TRUE(IsHeld());
  EXPECT_FALSE(Take().has_value());  // of this process, either
  EXPECT_EQ(*ReadSmallFile(path_), "us");
  lock.reset();
  EXPECT_FALSE(IsHeld());
  EXPECT_TRUE(Take().has_value());
}

TEST_F(FileLockTest, IsReleasedByKill) {
  auto ready = Pipe();
  ASSERT_TRUE(ready.ok());
  const pid_t holder = fork();
  if (holder == 0) {
    auto lock = FileLock::Take(path_, "a process that will be killed");
    if (!lock.ok() || write(ready->second.get(), "x", 1) != 1) _exit(1);
    pause();
  }
  char byte;
  ASSERT_EQ(read(ready->first.get(), &byte, 1), 1);
  EXPECT_TRUE(IsHeld());
  EXPECT_FALSE(Take().has_value());
  EXPECT_EQ(*ReadSmallFile(path_), "a process that will be killed");
  ASSERT_EQ(kill(holder, SIGKILL), 0);
  ASSERT_EQ(waitpid(holder, nullptr, 0), holder);
  EXPECT_FALSE(IsHeld());
  // The shorter description leaves nothing of the longer one, and no reader sees that it is
  // shorter.
  EXPECT_TRUE(Take().has_value());
  const std::string text = *ReadSmallFile(path_);
  EXPECT_EQ(text.size(), strlen("a process that will be killed"));
  EXPECT_EQ(absl::StripTrailingAsciiWhitespace(text), "us");
}

TEST_F(FileLockTest, IsWaitedFor) {
  auto ready = Pipe();
  auto go = Pipe();
  ASSERT_TRUE(ready.ok() && go.ok());
  const pid_t holder = fork();
  if (holder == 0) {
    auto lock = FileLock::Take(path_, "");
    char byte;
    const bool told = lock.ok() && write(ready->second.get(), "x", 1) == 1;
    _exit(told && read(go->first.get(), &byte, 1) == 1 ? 0 : 1);
  }
  char byte;
  ASSERT_EQ(read(ready->first.get(), &byte, 1), 1);
  EXPECT_FALSE(Take(std::chrono::milliseconds(20)).has_value());
  ASSERT_EQ(write(go->second.get(), "x", 1), 1);
  EXPECT_TRUE(Take(std::chrono::seconds(20)).has_value());
  ASSERT_EQ(waitpid(holder, nullptr, 0), holder);
}

TEST_F(FileLockTest, OfARemovedFileIsNone) {
  auto old = Take();
  ASSERT_TRUE(old.has_value());
  std::filesystem::remove(path_);
  EXPECT_FALSE(IsHeld());
  auto now = Take();
  ASSERT_TRUE(now.has_value());
  old.reset();
  EXPECT_TRUE(IsHeld());
}

TEST_F(FileLockTest, NoLinkIsFollowed) {
  std::filesystem::create_symlink(dir_ + "/elsewhere", path_);
  EXPECT_FALSE(FileLock::Take(path_, "us").ok());
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/elsewhere"));
}

}  // namespace
}  // namespace dtrain::os
