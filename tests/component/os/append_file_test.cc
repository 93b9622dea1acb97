// SPDX-License-Identifier: Apache-2.0
#include "common/os/append_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace dtrain::os {
namespace {

using testing::HasSubstr;

class AppendFileTest : public testing::Test {
 protected:
  AppendFileTest() {
    char path[] = "/tmp/dtrain-append-XXXXXX";
    dir_ = mkdtemp(path);
    path_ = dir_ + "/file";
    signal(SIGXFSZ, SIG_IGN);
  }
  ~AppendFileTest() override { std::filesystem::remove_all(dir_); }

  std::string Contents() const {
    std::ifstream in(path_, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  // Of a file that was made, or is there.
  static AppendFile Must(absl::StatusOr<AppendFile> file) {
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }

  std::string dir_;
  std::string path_;
};

TEST_F(AppendFileTest, GrowsAtItsEnd) {
  AppendFile file = Must(AppendFile::Create(path_));
  EXPECT_TRUE(file.Append("one ").ok());
  EXPECT_TRUE(file.Append("").ok());
  EXPECT_TRUE(file.Append("two").ok());
  EXPECT_TRUE(file.Sync().ok());
  EXPECT_EQ(file.size(), 7);
  AppendFile again = Must(AppendFile::Open(path_));
  EXPECT_EQ(again.size(), 7);
  EXPECT_TRUE(again.Append(" three").ok());
  EXPECT_EQ(Contents(), "one two three");
  EXPECT_EQ(*again.Read(4, 3), "two");
  EXPECT_EQ(*again.Read(8, 100), "three");
  EXPECT_EQ(*again.Read(100, 100), "");
}

TEST_F(AppendFileTest, IsForItsOwnerOnly) {
  const mode_t before = umask(0);
  Must(AppendFile::Create(path_));
  umask(before);
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600);
}

TEST_F(AppendFileTest, IsCut) {
  AppendFile file = Must(AppendFile::Create(path_));
  ASSERT_TRUE(file.Append("0123456789").ok());
  ASSERT_TRUE(file.CutTo(4).ok());
  ASSERT_TRUE(file.Append("x").ok());
  EXPECT_EQ(Contents(), "0123x");
}

TEST_F(AppendFileTest, OfAWriteThatFailsNothingIsLeft) {
  AppendFile file = Must(AppendFile::Create(path_));
  ASSERT_TRUE(file.Append("before").ok());
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &usual), 0);
  const rlimit low{10, usual.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const absl::Status failed = file.Append("much that is longer");  // the first 4 bytes fit
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &usual), 0);
  EXPECT_THAT(std::string(failed.message()),
              HasSubstr(absl::StrCat("write ", path_, ": File too large")));
  EXPECT_EQ(Contents(), "before");
  ASSERT_TRUE(file.Append(" after").ok());
  EXPECT_EQ(Contents(), "before after");
}

TEST_F(AppendFileTest, TakesNothingButAFileOfThatName) {
  EXPECT_TRUE(absl::IsNotFound(AppendFile::Open(path_).status()));
  Must(AppendFile::Create(path_));
  EXPECT_TRUE(absl::IsAlreadyExists(AppendFile::Create(path_).status()));
  ASSERT_EQ(symlink(path_.c_str(), (dir_ + "/link").c_str()), 0);
  EXPECT_FALSE(AppendFile::Open(dir_ + "/link").ok());
  ASSERT_EQ(mkfifo((dir_ + "/fifo").c_str(), 0600), 0);
  EXPECT_THAT(std::string(AppendFile::Open(dir_ + "/fifo").status().message()),
              HasSubstr("is not a regular file"));
}

TEST_F(AppendFileTest, SyncTellsThatItWasRemoved) {
  AppendFile file = Must(AppendFile::Create(path_));
  std::filesystem::remove(path_);
  ASSERT_TRUE(file.Append("x").ok());
  EXPECT_TRUE(absl::IsDataLoss(file.Sync()));
}

TEST_F(AppendFileTest, ReplaceFileIsAllOrNothing) {
  ASSERT_TRUE(ReplaceFile(path_, "first").ok());
  EXPECT_EQ(Contents(), "first");
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &usual), 0);
  const rlimit low{3, usual.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  EXPECT_FALSE(ReplaceFile(path_, "second").ok());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &usual), 0);
  EXPECT_EQ(Contents(), "first");
  ASSERT_TRUE(ReplaceFile(path_, "third").ok());
  EXPECT_EQ(Contents(), "third");
  // No drafts are left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1);
}

TEST_F(AppendFileTest, FoldersAreSynced) {
  EXPECT_TRUE(SyncFolder(dir_).ok());
  EXPECT_TRUE(absl::IsNotFound(SyncFolder(dir_ + "/none")));
}

}  // namespace
}  // namespace dtrain::os
