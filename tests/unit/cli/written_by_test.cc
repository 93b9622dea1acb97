// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/written_by.h"

#include <gtest/gtest.h>

namespace dtrain::cli {
namespace {

std::string Who(uid_t uid, gid_t gid, mode_t mode) {
  struct stat info = {};
  info.st_uid = uid;
  info.st_gid = gid;
  info.st_mode = mode;
  return WhoElseWrites(info, /*self=*/1000);
}

TEST(WrittenByTest, OwnFilesAndThoseOfRootAreTrusted) {
  EXPECT_EQ(Who(1000, 100, S_IFREG | 0644), "");
  EXPECT_EQ(Who(1000, 100, S_IFDIR | 0755), "");
  EXPECT_EQ(Who(0, 0, S_IFREG | 0644), "");
}

TEST(WrittenByTest, OthersAreNamed) {
  EXPECT_EQ(Who(7, 7, S_IFREG | 0600), "belongs to user id 7");
  EXPECT_EQ(Who(1000, 1000, S_IFREG | 0666), "can be written by everybody (chmod go-w)");
  EXPECT_EQ(Who(1000, 100, S_IFREG | 0664), "can be written by group id 100 (chmod g-w)");
  EXPECT_EQ(Who(0, 100, S_IFREG | 0664), "can be written by group id 100 (chmod g-w)");
}

// As by Debian's umask 002.
TEST(WrittenByTest, AUsersOwnGroupIsNobodyElse) {
  EXPECT_EQ(Who(1000, 1000, S_IFREG | 0664), "");
  EXPECT_EQ(Who(1000, 1000, S_IFDIR | 0775), "");
  EXPECT_EQ(Who(0, 0, S_IFREG | 0664), "");
}

TEST(WrittenByTest, OnlyOfAFolderStickyMeansSomething) {
  EXPECT_EQ(Who(0, 0, S_IFDIR | 01777), "");
  EXPECT_EQ(Who(1000, 100, S_IFREG | 01666), "can be written by everybody (chmod go-w)");
}

}  // namespace
}  // namespace dtrain::cli
