// SPDX-License-Identifier: Apache-2.0
#include "common/os/scratch_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/process_tree.h"

namespace dtrain::os {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr size_t kLimit = 64 << 10;

class ScratchFolderTest : public ::testing::Test {
 protected:
  ScratchFolderTest() {
    char name[] = "/tmp/dtrain-scratch-test-XXXXXX";
    runtime_ = mkdtemp(name);
    places_ = {runtime_};
  }
  ~ScratchFolderTest() override { std::filesystem::remove_all(runtime_); }
  static void Write(const std::string& path, absl::string_view text) {
    std::ofstream(path) << text;
  }
  static bool Exists(const std::string& path) {
    struct stat status;
    return lstat(path.c_str(), &status) == 0;
  }
  // One that a process has left which was killed.
  std::string OfOneThatWasKilled(pid_t* pid, uint64_t* start_time, bool reap = true) {
    auto pipe = Pipe();
    *pid = fork();
    if (*pid == 0) {
      auto folder = ScratchFolder::Make(places_);
      (void)!write(pipe->second.get(), folder->path().c_str(), folder->path().size());
      raise(SIGKILL);
    }
    pipe->second.Reset();
    auto path = ReadToEnd(pipe->first.get(), "a pipe", 4096);
    *start_time = StartTime(*pid).value_or(0);
    siginfo_t ended;
    waitid(P_PID, static_cast<id_t>(*pid), &ended, WEXITED | (reap ? 0 : WNOWAIT));
    return path.ok() ? *path : "";
  }

  std::string runtime_;
  std::vector<std::string> places_;
};

TEST_F(ScratchFolderTest, IsItsUsersAloneAndGoesWithAllInIt) {
  std::string path;
  {
    auto folder = ScratchFolder::Make(places_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    path = folder->path();
    EXPECT_THAT(path, StartsWith(absl::StrCat(runtime_, "/dtrain-", getpid(), "-")));
    struct stat status;
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0700u);
    EXPECT_EQ(status.st_uid, geteuid());
    Write(path + "/a", "x");
    std::filesystem::create_directories(path + "/b/c");
    Write(path + "/b/c/d", "x");
    ASSERT_EQ(symlink(runtime_.c_str(), (path + "/b/link").c_str()), 0);
    Write(runtime_ + "/kept", "x");
  }
  EXPECT_FALSE(Exists(path));
  EXPECT_TRUE(Exists(runtime_ + "/kept")) << "a link was followed";
}

TEST_F(ScratchFolderTest, TakesTheNextPlaceWhereTheFirstIsMissing) {
  auto folder = ScratchFolder::Make({"/nowhere/at/all", runtime_});
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_TRUE(Exists(folder->path()));
  EXPECT_THAT(std::string(ScratchFolder::Make({"/nowhere/at/all"}).status().message()),
              HasSubstr("make a folder for the job in /nowhere/at/all: No such file"));
}

TEST_F(ScratchFolderTest, ReadsTheBeginningOfAFile) {
  auto folder = ScratchFolder::Make(places_);
  ASSERT_TRUE(folder.ok());
  EXPECT_TRUE(absl::IsNotFound(folder->Read("a", kLimit).status()));
  Write(folder->path() + "/a", "text");
  EXPECT_EQ(folder->Read("a", kLimit).value_or("?"), "text");
  EXPECT_EQ(folder->Read("a", 2).value_or("?"), "te");
  ASSERT_EQ(truncate((folder->path() + "/a").c_str(), 1 << 30), 0);
  EXPECT_EQ(folder->Read("a", kLimit).value_or("?").size(), kLimit);
}

TEST_F(ScratchFolderTest, ReadsNothingThatIsNotARegularFile) {
  auto folder = ScratchFolder::Make(places_);
  ASSERT_TRUE(folder.ok());
  const std::string& path = folder->path();
  ASSERT_EQ(mkfifo((path + "/fifo").c_str(), 0600), 0);
  ASSERT_EQ(mkdir((path + "/folder").c_str(), 0700), 0);
  ASSERT_EQ(symlink("/etc/passwd", (path + "/link").c_str()), 0);
  ASSERT_EQ(symlink("/dev/zero", (path + "/device").c_str()), 0);
  for (const char* name : {"fifo", "folder"}) {
    EXPECT_THAT(std::string(folder->Read(name, kLimit).status().message()),
                HasSubstr("it is not a regular file"))
        << name;
  }
  for (const char* name : {"link", "device"}) {
    EXPECT_THAT(std::string(folder->Read(name, kLimit).status().message()),
                HasSubstr("symbolic links"))
        << name;
  }
}

TEST_F(ScratchFolderTest, ReadsNoFileOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give a file away";
  auto folder = ScratchFolder::Make(places_);
  ASSERT_TRUE(folder.ok());
  Write(folder->path() + "/a", "a secret");
  ASSERT_EQ(chown((folder->path() + "/a").c_str(), 65534, 65534), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(folder->Read("a", kLimit).status()));
}

TEST_F(ScratchFolderTest, WhatAKilledProcessLeftIsFoundByItsName) {
  pid_t pid = 0;
  uint64_t start_time = 0;
  const std::string left = OfOneThatWasKilled(&pid, &start_time);
  ASSERT_TRUE(Exists(left)) << left;
  Write(left + "/rank0.json", "{}");
  auto ours = ScratchFolder::Make(places_);
  ASSERT_TRUE(ours.ok());
  EXPECT_TRUE(RemoveScratchFolders(places_, pid, start_time + 1, geteuid()).ok());
  EXPECT_TRUE(Exists(left)) << "of a process that had the same pid at another time";
  EXPECT_TRUE(RemoveScratchFolders(places_, pid, start_time, geteuid()).ok());
  EXPECT_FALSE(Exists(left));
  EXPECT_TRUE(Exists(ours->path()));
}

// The agent is root and a folder of that name may be anybody's, or no folder.
TEST_F(ScratchFolderTest, NothingOfOthersIsRemoved) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give a folder away";
  std::filesystem::create_directories(runtime_ + "/precious/x");
  struct stat here;
  ASSERT_EQ(stat("/proc/self/ns/pid", &here), 0);
  const std::string stem = absl::StrCat(runtime_, "/dtrain-17-4-", here.st_ino);
  const std::string link = stem + "-aaaaaa";
  ASSERT_EQ(symlink((runtime_ + "/precious").c_str(), link.c_str()), 0);
  ASSERT_EQ(lchown(link.c_str(), 65534, 65534), 0);
  const std::string folder = stem + "-bbbbbb";
  std::filesystem::create_directories(folder);
  EXPECT_TRUE(RemoveScratchFolders(places_, 17, 4, 65534).ok());
  EXPECT_TRUE(Exists(runtime_ + "/precious/x"));
  EXPECT_TRUE(Exists(link));
  EXPECT_TRUE(Exists(folder));
  ASSERT_EQ(chown(folder.c_str(), 65534, 65534), 0);
  EXPECT_TRUE(RemoveScratchFolders(places_, 17, 4, 65534).ok());
  EXPECT_FALSE(Exists(folder));
}

// By `dtrain-agent reap`, when nobody is left who knows of them.
TEST_F(ScratchFolderTest, WhatDeadProcessesLeftIsFound) {
  pid_t pid = 0;
  uint64_t start_time = 0;
  const std::string left = OfOneThatWasKilled(&pid, &start_time);
  ASSERT_TRUE(Exists(left)) << left;
  auto ours = ScratchFolder::Make(places_);
  ASSERT_TRUE(ours.ok());
  // Of a container that shares this folder.
  const std::string foreign =
      absl::StrCat(runtime_, "/dtrain-", pid, "-", start_time, "-1234567-aaaaaa");
  std::filesystem::create_directories(foreign);
  EXPECT_TRUE(RemoveDeadScratchFolders(places_, /*of_all_users=*/true).ok());
  EXPECT_FALSE(Exists(left));
  EXPECT_TRUE(Exists(ours->path()));
  EXPECT_TRUE(Exists(foreign));
}

// As that of a shepherd which was killed a moment before, with another parent than us.
TEST_F(ScratchFolderTest, OneThatNobodyHasReapedIsDead) {
  pid_t pid = 0;
  uint64_t start_time = 0;
  const std::string left = OfOneThatWasKilled(&pid, &start_time, /*reap=*/false);
  ASSERT_TRUE(Exists(left)) << left;
  EXPECT_TRUE(RemoveDeadScratchFolders(places_, /*of_all_users=*/false).ok());
  EXPECT_FALSE(Exists(left));
  waitpid(pid, nullptr, 0);
}

// Anybody may make them, in any number, where root's shepherds make theirs.
TEST_F(ScratchFolderTest, WhatDeadProcessesOfOthersLeftIsOnlyForWhoAsksForIt) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  pid_t pid = 0;
  uint64_t start_time = 0;
  const std::string left = OfOneThatWasKilled(&pid, &start_time);
  ASSERT_EQ(chown(left.c_str(), 65534, 65534), 0);
  EXPECT_TRUE(RemoveDeadScratchFolders(places_, /*of_all_users=*/false).ok());
  EXPECT_TRUE(Exists(left));
  EXPECT_TRUE(RemoveDeadScratchFolders(places_, /*of_all_users=*/true).ok());
  EXPECT_FALSE(Exists(left));
}

// They would hold up the agent, which has other jobs to look after.
TEST_F(ScratchFolderTest, OfVeryManyFoldersAndNamesMostAreLeft) {
  pid_t pid = 0;
  uint64_t start_time = 0;
  const std::string left = OfOneThatWasKilled(&pid, &start_time);
  ASSERT_TRUE(Exists(left)) << left;
  for (char c = 'a'; c <= 'z'; ++c) {
    std::filesystem::create_directories(left.substr(0, left.size() - 6) + std::string(6, c) + "/x");
  }
  const auto folders = [this] {
    return std::distance(std::filesystem::directory_iterator(runtime_), {});
  };
  for (const RemovalLimit limit : {RemovalLimit{16, 10}, RemovalLimit{16, 10000, 5}}) {
    const auto before = folders();
    EXPECT_FALSE(RemoveScratchFolders(places_, pid, start_time, geteuid(), limit).ok());
    EXPECT_LT(folders(), before);
    EXPECT_GE(folders(), before - 10);
  }
  EXPECT_TRUE(RemoveScratchFolders(places_, pid, start_time, geteuid()).ok());
  EXPECT_EQ(folders(), 0);
}

// So would it.
TEST_F(ScratchFolderTest, AFolderThatWasMadeDeepIsLeft) {
  auto folder = ScratchFolder::Make(places_);
  ASSERT_TRUE(folder.ok());
  std::string deep = folder->path();
  for (int i = 0; i < 40; ++i) deep += "/d";
  std::filesystem::create_directories(deep);
  EXPECT_THAT(std::string(folder->Remove().message()), HasSubstr("remove it with rm -r"));
  EXPECT_TRUE(Exists(deep));
}

}  // namespace
}  // namespace dtrain::os
