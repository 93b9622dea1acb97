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
                                     HasSubstr("fix it with: chmod 600 " + path_)));
  }
}

TEST_F(PrivateFileTest, NotARegularFile) {
  ASSERT_EQ(symlink("key", (dir_ + "/link").c_str()), 0);
  EXPECT_THAT(WhyNot(dir_ + "/link"), HasSubstr("is a symbolic link"));
  ASSERT_EQ(mkfifo((dir_ + "/fifo").c_str(), 0600), 0);
  EXPECT_THAT(WhyNot(dir_ + "/fifo"), HasSubstr("is not a regular file"));
  EXPECT_THAT(WhyNot(dir_), HasSubstr("is not a regular file"));
  EXPECT_THAT(WhyNot("/dev/null"), HasSubstr("is not a regular file"));
  EXPECT_EQ(CheckPrivateFile(dir_ + "/none").code(), absl::StatusCode::kNotFound);
}

TEST_F(PrivateFileTest, InADirectoryThatOthersCanChange) {
  const std::string inner = dir_ + "/a b";
  ASSERT_EQ(mkdir(inner.c_str(), 0700), 0);
  std::filesystem::copy(path_, inner + "/key");
  ASSERT_EQ(chmod(dir_.c_str(), 0707), 0);
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
  ASSERT_EQ(symlink(dir_.c_str(), (dir_ + "/here").c_str()), 0);
  EXPECT_TRUE(CheckPrivateFile(dir_ + "/here/key").ok());
  ASSERT_EQ(lchown((dir_ + "/here").c_str(), 65534, 65534), 0);
  EXPECT_THAT(WhyNot(dir_ + "/here/key"), HasSubstr("is a symbolic link of user id 65534"));
  ASSERT_EQ(chown(dir_.c_str(), 65534, 65534), 0);
  EXPECT_THAT(WhyNot(path_), HasSubstr("belongs to user id 65534, who can replace files"));
}

class TrustedFileTest : public PrivateFileTest {
 protected:
  TrustedFileTest() { chmod(path_.c_str(), 0644); }

  static std::string WhyNot(const std::string& path) {
    const absl::Status status = CheckTrustedFile(path);
    EXPECT_EQ(ReadTrustedFile(path).status(), status);
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kPermissionDenied) << status;
    return std::string(status.message());
  }
};

TEST_F(TrustedFileTest, MayBeReadAndNotWritten) {
  EXPECT_EQ(*ReadTrustedFile(path_), "secret");
  EXPECT_EQ(ReadTrustedFile(path_, 5).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CheckTrustedFile(dir_ + "/none").code(), absl::StatusCode::kNotFound);
  for (const mode_t mode : {0606, 0646, 0622}) {  // whoever's the group is
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    EXPECT_THAT(WhyNot(path_), AllOf(HasSubstr("can be written by others (mode "),
                                     HasSubstr("fix it with: chmod go-w " + path_)));
  }
}

TEST_F(TrustedFileTest, NotARegularFile) {
  ASSERT_EQ(mkfifo((dir_ + "/fifo").c_str(), 0600), 0);
  EXPECT_THAT(WhyNot(dir_ + "/fifo"), HasSubstr("is not a regular file"));
  EXPECT_THAT(WhyNot(dir_), HasSubstr("is not a regular file"));
  EXPECT_EQ(CheckTrustedFile(path_ + "/more").code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TrustedFileTest, BehindLinksThatAreOurs) {
  const std::string inner = dir_ + "/inner";
  ASSERT_EQ(mkdir(inner.c_str(), 0700), 0);
  ASSERT_EQ(symlink("../key", (inner + "/near").c_str()), 0);
  ASSERT_EQ(symlink((inner + "/./near").c_str(), (dir_ + "/far").c_str()), 0);
  ASSERT_EQ(symlink("inner/", (dir_ + "/folder").c_str()), 0);
  for (const std::string name : {"/inner/near", "/far", "/folder/near", "/folder/../far"}) {
    EXPECT_EQ(*ReadTrustedFile(dir_ + name), "secret") << name;
  }
  ASSERT_EQ(symlink("round", (dir_ + "/round").c_str()), 0);
  EXPECT_THAT(CheckTrustedFile(dir_ + "/round").message(), HasSubstr("symbolic links"));
  // Whoever can change a directory that the links lead through leads them elsewhere.
  ASSERT_EQ(chmod(inner.c_str(), 0777), 0);
  for (const std::string name : {"/inner/near", "/far", "/folder/near"}) {
    EXPECT_THAT(WhyNot(dir_ + name), HasSubstr("chmod go-w " + inner)) << name;
  }
}

TEST_F(TrustedFileTest, OfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const std::string link = dir_ + "/link";
  ASSERT_EQ(symlink("key", link.c_str()), 0);
  ASSERT_EQ(lchown(link.c_str(), 65534, 65534), 0);
  EXPECT_THAT(WhyNot(link), AllOf(HasSubstr("is a symbolic link of user id 65534"),
                                  HasSubstr("fix it with: chown -h 0 " + link)));
  ASSERT_EQ(chown(path_.c_str(), 65534, 65534), 0);
  EXPECT_THAT(WhyNot(path_), AllOf(HasSubstr("belongs to user id 65534"), HasSubstr("chown 0 ")));
}

// With a umask of 002, where each user has a group.
TEST_F(TrustedFileTest, AUsersOwnGroupIsNobodyElse) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  constexpr uid_t kUser = 70'000'001;
  for (const gid_t group : {kUser, kUser + 1}) {
    for (const std::string& each : {dir_, path_}) {
      ASSERT_EQ(chown(each.c_str(), kUser, group), 0);
      ASSERT_EQ(chmod(each.c_str(), 0775), 0);
    }
    ASSERT_EQ(seteuid(kUser), 0);
    const std::string why = WhyNot(path_);
    ASSERT_EQ(seteuid(0), 0);
    EXPECT_EQ(why.empty(), group == kUser) << why;
  }
}

class OwnDirectoryTest : public PrivateFileTest {
 protected:
  std::string WhyNot() const {
    const absl::Status status = MakeOwnDirectory(own_ + "/", 0700, 0755);
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kPermissionDenied) << status;
    return std::string(status.message());
  }
  const std::string own_ = dir_ + "/own";
};

TEST_F(OwnDirectoryTest, IsMadeOrTaken) {
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(MakeOwnDirectory(own_, 0700, 0700).ok());
  ASSERT_EQ(chmod(own_.c_str(), 0755), 0);
  EXPECT_EQ(WhyNot(), "");
  for (const mode_t mode : {0775, 0757, 01777}) {
    ASSERT_EQ(chmod(own_.c_str(), mode), 0);
    EXPECT_THAT(WhyNot(), AllOf(HasSubstr("is open to others (mode "),
                                HasSubstr("fix it with: chmod 755 " + own_)));
  }
  EXPECT_EQ(MakeOwnDirectory(dir_ + "/none/own", 0700, 0700).code(), absl::StatusCode::kNotFound);
}

TEST_F(OwnDirectoryTest, IsNoLinkAndNoFile) {
  ASSERT_EQ(symlink(dir_.c_str(), own_.c_str()), 0);
  EXPECT_THAT(WhyNot(), HasSubstr("is a symbolic link; fix it with: rm " + own_));
  ASSERT_EQ(unlink(own_.c_str()), 0);
  std::ofstream(own_) << "";
  EXPECT_THAT(WhyNot(), HasSubstr("is not a directory"));
}

TEST_F(OwnDirectoryTest, IsNotMadeWhereOthersCanReplaceIt) {
  ASSERT_EQ(chmod(dir_.c_str(), 0777), 0);
  EXPECT_THAT(WhyNot(), HasSubstr("chmod go-w " + dir_));
  EXPECT_FALSE(std::filesystem::exists(own_));
  ASSERT_EQ(chmod(dir_.c_str(), 01777), 0);
  EXPECT_EQ(WhyNot(), "");
}

TEST_F(OwnDirectoryTest, OfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_EQ(mkdir(own_.c_str(), 0700), 0);
  ASSERT_EQ(chown(own_.c_str(), 65534, 65534), 0);
  EXPECT_THAT(WhyNot(), HasSubstr("belongs to user id 65534; fix it with: chown 0 " + own_));
}

}  // namespace
}  // namespace dtrain::os
