// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/state_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace dtrain::shepherd {
namespace {

namespace fs = std::filesystem;

class StateFolderTest : public testing::Test {
 protected:
  StateFolderTest() {
    std::string folder = absl::StrCat(testing::TempDir(), "/stateXXXXXX");
    top_ = mkdtemp(folder.data());
    directory_ = top_ / "some" / "where";
    part_.set_job_id("dtrain-job1");
    part_.set_host("node1");
    part_.mutable_state()->set_directory(directory_.string());
  }
  ~StateFolderTest() override { fs::remove_all(top_); }

  StateFolder Folder(const std::string& job = "dtrain-job1", const std::string& host = "node1") {
    part_.set_job_id(job);
    part_.set_host(host);
    return *StateFolder::Of(part_, "/cache");
  }
  static void Write(const fs::path& file) { std::ofstream(file) << "state"; }
  // As workers leave it.
  static StateFolder Kept(const StateFolder& folder) {
    EXPECT_TRUE(folder.Make().ok());
    Write(fs::path(folder.path()) / "state-1");
    Write(fs::path(folder.path()) / "state-2.new");
    return folder;
  }
  static void SetAge(const fs::path& path, std::chrono::seconds age) {
    const timespec when{time(nullptr) - static_cast<time_t>(age.count()), 0};
    const timespec times[] = {when, when};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
  }
  static mode_t ModeOf(const fs::path& path) {
    struct stat info {};
    EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
    return info.st_mode & 07777;
  }

  fs::path top_, directory_;
  v1::JobPart part_;
};

TEST_F(StateFolderTest, IsThatOfTheJobAndTheHost) {
  EXPECT_EQ(Folder().path(), (directory_ / "dtrain-job1" / "node1").string());
  EXPECT_EQ(Folder().job_path(), (directory_ / "dtrain-job1").string());
  part_.mutable_state()->clear_directory();
  EXPECT_EQ(Folder().path(), "/cache/dtrain/state/dtrain-job1/node1");
  auto nowhere = StateFolder::Of(part_, "");
  EXPECT_EQ(nowhere.status().message(), "choose a folder: neither HOME nor XDG_CACHE_HOME is set");
}

TEST_F(StateFolderTest, StaysWithinItsDirectory) {
  for (const char* name : {"", ".", "..", "a/b", "../x", ".hidden"}) {
    part_.set_job_id(name);
    part_.set_host("node1");
    EXPECT_FALSE(StateFolder::Of(part_, "/cache").ok()) << name;
    part_.set_job_id("dtrain-job1");
    part_.set_host(name);
    EXPECT_FALSE(StateFolder::Of(part_, "/cache").ok()) << name;
  }
  part_.set_host("node1");
  part_.mutable_state()->set_directory("relative");
  EXPECT_FALSE(StateFolder::Of(part_, "/cache").ok());
}

TEST_F(StateFolderTest, IsMadeForItsUserOnly) {
  const mode_t before = umask(0);
  const absl::Status made = Folder().Make();
  umask(before);
  ASSERT_TRUE(made.ok()) << made;
  for (const fs::path& path :
       {top_ / "some", directory_, directory_ / "dtrain-job1", directory_ / "dtrain-job1/node1"}) {
    EXPECT_EQ(ModeOf(path), 0700u) << path;
  }
  EXPECT_TRUE(Folder().Make().ok());
  Folder().RemoveIfEmpty();
  EXPECT_TRUE(fs::is_empty(directory_));
  Kept(Folder()).RemoveIfEmpty();
  EXPECT_TRUE(fs::exists(fs::path(Folder().path()) / "state-1"));
}

TEST_F(StateFolderTest, FollowsNoLinkThatSomebodyHasPutInItsPlace) {
  const fs::path precious = top_ / "precious";
  fs::create_directories(precious / "node1");
  Write(precious / "node1" / "state-1");
  fs::create_directories(directory_);
  fs::create_directory_symlink(precious, directory_ / "dtrain-job1");
  EXPECT_FALSE(Folder().Make().ok());
  EXPECT_FALSE(Folder().Remove().ok());
  SetAge(precious / "node1", kOldState * 2);
  SetAge(directory_ / "dtrain-job1", kOldState * 2);
  Folder().RemoveOlder(kOldState);
  EXPECT_TRUE(fs::exists(precious / "node1" / "state-1"));

  const StateFolder folder = Folder("dtrain-job2");
  fs::create_directories(folder.job_path());
  fs::create_directory_symlink(precious / "node1", folder.path());
  EXPECT_FALSE(folder.Make().ok());
  EXPECT_FALSE(folder.Remove().ok());
  folder.RemoveOlder(std::chrono::seconds(-10));
  EXPECT_TRUE(fs::exists(precious / "node1" / "state-1"));
}

TEST_F(StateFolderTest, LeavesFoldersOfOtherUsersAlone) {
  if (geteuid() != 0) GTEST_SKIP() << "not root";
  const StateFolder folder = Kept(Folder());
  ASSERT_EQ(chown(folder.job_path().c_str(), 12345, 12345), 0);
  const absl::Status made = folder.Make();
  EXPECT_TRUE(absl::IsPermissionDenied(made));
  EXPECT_TRUE(absl::StrContains(made.message(), "belongs to the user with the id 12345")) << made;
  EXPECT_FALSE(folder.Remove().ok());
  folder.RemoveOlder(std::chrono::seconds(-10));
  EXPECT_TRUE(fs::exists(fs::path(folder.path()) / "state-1"));
  ASSERT_EQ(chown(folder.job_path().c_str(), 0, 0), 0);
  ASSERT_EQ(chown(folder.path().c_str(), 12345, 12345), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(folder.Make()));
  EXPECT_FALSE(folder.Remove().ok());
}

TEST_F(StateFolderTest, IsRemovedWithTheJobsFolderAfterTheLastHost) {
  const StateFolder one = Kept(Folder()), other = Kept(Folder("dtrain-job1", "node2"));
  EXPECT_TRUE(one.Remove().ok());
  EXPECT_FALSE(fs::exists(one.path()));
  EXPECT_TRUE(fs::exists(fs::path(other.path()) / "state-1"));
  EXPECT_TRUE(other.Remove().ok());
  EXPECT_TRUE(fs::exists(directory_));
  EXPECT_TRUE(fs::is_empty(directory_));
  EXPECT_TRUE(other.Remove().ok()) << "nothing is there";
}

TEST_F(StateFolderTest, FilesOfOthersStayAndAreReported) {
  const StateFolder folder = Kept(Folder());
  Write(fs::path(folder.path()) / "my notes");
  fs::create_directories(fs::path(folder.path()) / "state-dir" / "deep");
  const absl::Status removed = folder.Remove();
  EXPECT_TRUE(absl::StrContains(removed.message(), folder.path())) << removed;
  EXPECT_FALSE(fs::exists(fs::path(folder.path()) / "state-1"));
  EXPECT_TRUE(fs::exists(fs::path(folder.path()) / "my notes"));
  EXPECT_TRUE(fs::exists(fs::path(folder.path()) / "state-dir" / "deep"));
}

TEST_F(StateFolderTest, OnlyOldStateGoesByItself) {
  const StateFolder old = Kept(Folder("dtrain-old")), present = Kept(Folder("dtrain-new"));
  const StateFolder both = Kept(Folder("dtrain-both", "gone")),
                    half = Kept(Folder("dtrain-both", "here"));
  SetAge(old.path(), kOldState + std::chrono::hours(1));
  SetAge(both.path(), kOldState + std::chrono::hours(1));
  SetAge(present.path(), kOldState - std::chrono::hours(1));
  // What is not of our making.
  fs::create_directories(directory_ / "project" / "src");
  Write(directory_ / "project" / "src" / "state-1");
  SetAge(directory_ / "project" / "src", kOldState * 3);
  SetAge(directory_ / "project", kOldState * 3);
  present.RemoveOlder(kOldState);
  EXPECT_FALSE(fs::exists(old.job_path()));
  EXPECT_FALSE(fs::exists(both.path()));
  EXPECT_TRUE(fs::exists(fs::path(half.path()) / "state-1"));
  EXPECT_TRUE(fs::exists(fs::path(present.path()) / "state-1"));
  EXPECT_TRUE(fs::exists(directory_ / "project" / "src" / "state-1"));
}

}  // namespace
}  // namespace dtrain::shepherd
