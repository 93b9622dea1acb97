// SPDX-License-Identifier: Apache-2.0
#include "common/os/private_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace dtrain::os {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class PrivateFileTest : public testing::Test {
 protected:
  PrivateFileTest() {
    char name[] = "/tmp/dtrain-private-XXXXXX";
    dir_ = mkdtemp(name);
    path_ = dir_ + "/key";
    std::ofstream(path_) << "secret";
    chmod(path_.c_str(), 0600);
  }
  ~PrivateFileTest() override { std::filesystem::remove_all(dir_); }

  static std::string WhyNot(const std::string& path) {
    const absl::Status status = CheckPrivateFile(path);
    EXPECT_EQ(ReadPrivateFile(path).status(), status);
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kPermissionDenied) << status;
    return std::string(status.message());
  }

  std::string dir_;
  std::string path_;
};

TEST_F(PrivateFileTest, IsRead) {
  for (const mode_t mode : {0400, 0600, 0700}) {
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    EXPECT_TRUE(CheckPrivateFile(path_).ok()) << CheckPrivateFile(path_);
  }
  EXPECT_EQ(*ReadPrivateFile(path_), "secret");
  EXPECT_EQ(*ReadPrivateFile(path_, 6), "secret");
  EXPECT_EQ(ReadPrivateFile(path_, 5).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(PrivateFileTest, OpenToOthers) {
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0610, 0777}) {
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    EXPECT_THAT(WhyNot(path_), AllOf(HasSubstr("is open to others (mode "),
                                     HasSubstr("mend it with: chmod 600 " + path_)));
  }
}

TEST_F(PrivateFileTest, NotARegularFile) {
  ASSERT_EQ(symlink("key", (dir_ + "/link").c_str()), 0);
  EXPECT_THAT(WhyNot(dir_ + "/link"), HasSubstr("is a symbolic link"));
  ASSERT_EQ(mkfifo((dir_ + "/fifo").c_str(), 0600), 0);
  EXPECT_THAT(WhyNot(dir_ + "/fifo"), HasSubstr("is no regular file"));
  EXPECT_THAT(WhyNot(dir_), HasSubstr("is no regular file"));
  EXPECT_THAT(WhyNot("/dev/null"), HasSubstr("is no regular file"));
  EXPECT_EQ(CheckPrivateFile(dir_ + "/none").code(), absl::StatusCode::kNotFound);
}

TEST_F(PrivateFileTest, InADirectoryThatOthersCanChange) {
  const std::string inner = dir_ + "/a b";
  ASSERT_EQ(mkdir(inner.c_str(), 0700), 0);
  std::filesystem::copy(path_, inner + "/key");
  ASSERT_EQ(chmod(dir_.c_str(), 0770), 0);
  EXPECT_THAT(WhyNot(inner + "/key"), HasSubstr("chmod go-w " + dir_));
  // As /tmp itself: others may add files, not replace ours.
  ASSERT_EQ(chmod(dir_.c_str(), 01777), 0);
  EXPECT_TRUE(CheckPrivateFile(inner + "/key").ok());
  ASSERT_EQ(chmod(inner.c_str(), 0777), 0);
  EXPECT_THAT(WhyNot(inner + "/key"), HasSubstr("chmod go-w '" + inner + "'"));
}

TEST_F(PrivateFileTest, OfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_EQ(chown(path_.c_str(), 65534, 65534), 0);
  EXPECT_THAT(WhyNot(path_), AllOf(HasSubstr("belongs to user id 65534"), HasSubstr("chown 0 ")));
  ASSERT_EQ(chown(path_.c_str(), 0, 0), 0);
  ASSERT_EQ(chown(dir_.c_str(), 65534, 65534), 0);
  EXPECT_THAT(WhyNot(path_), HasSubstr("belongs to user id 65534, who can replace files"));
}

}  // namespace
}  // namespace dtrain::os
