// SPDX-License-Identifier: Apache-2.0
#include "agent/session/job_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace dtrain::session {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class JobDirectoryTest : public ::testing::Test {
 protected:
  JobDirectoryTest() {
    char name[] = "/tmp/dtrain-state-XXXXXX";
    state_ = mkdtemp(name);
    std::filesystem::create_directory(state_ + "/jobs");
  }
  ~JobDirectoryTest() override { std::filesystem::remove_all(state_); }
  static v1::JobRecord Record() {
    v1::JobRecord record;
    record.set_job_id("dtrain-1f");
    record.set_attempt(2);
    record.set_uid(1000);
    record.set_boot_id("b");
    record.set_shepherd_pid(77);
    return record;
  }
  std::string state_;
};

TEST_F(JobDirectoryTest, KeepsARecordForNobodyElse) {
  auto made = JobDirectory::Make(state_, {1000, "dtrain-1f", 2});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->path(), state_ + "/jobs/dtrain-1f.2.1000");
  struct stat info {};
  ASSERT_EQ(stat(made->path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_TRUE(made->Write(Record()).ok());
  auto listed = JobDirectory::List(state_);
  ASSERT_THAT(listed, SizeIs(1));
  auto read = listed[0].Read();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->shepherd_pid(), 77u);
  EXPECT_EQ(listed[0].job_id(), "dtrain-1f");
  EXPECT_EQ(listed[0].attempt(), 2u);
  EXPECT_EQ(listed[0].uid(), 1000u);
  made->Remove();
  EXPECT_THAT(JobDirectory::List(state_), SizeIs(0));
}

TEST_F(JobDirectoryTest, TheSameJobTwiceIsRefused) {
  auto made = JobDirectory::Make(state_, {1000, "dtrain-1f", 0});
  EXPECT_TRUE(absl::IsAlreadyExists(JobDirectory::Make(state_, {1000, "dtrain-1f", 0}).status()));
  EXPECT_TRUE(JobDirectory::Make(state_, {1000, "dtrain-1f", 1}).ok());
  EXPECT_TRUE(JobDirectory::Make(state_, {1001, "dtrain-1f", 0}).ok()) << "of another user";
}

TEST_F(JobDirectoryTest, AHiddenOneIsFoundFromShowOnAndByTheSameSocket) {
  std::filesystem::remove(state_ + "/jobs");  // no agent has been here
  const spawn::JobKey key{getuid(), "dtrain-1f", 0};
  auto made = JobDirectory::MakeHidden(state_, key);
  ASSERT_TRUE(made.ok()) << made.status();
  os::UniqueFd shepherd = made->TakeSocket();
  ASSERT_EQ(listen(shepherd.get(), 1), 0);
  EXPECT_THAT(JobDirectory::List(state_), SizeIs(0));
  EXPECT_TRUE(JobDirectory::HasShepherd(key));
  JobDirectory::RemoveHidden(state_);  // it has one
  ASSERT_TRUE(made->Show().ok());
  EXPECT_TRUE(JobDirectory::HasShepherd(key));
  const auto listed = JobDirectory::List(state_);
  ASSERT_THAT(listed, SizeIs(1));
  EXPECT_TRUE(listed[0].Connect().ok()) << listed[0].Connect().status();
  shepherd.Reset();
  ASSERT_TRUE(JobDirectory::MakeHidden(state_, {getuid(), "dtrain-2f", 0}).ok());
  JobDirectory::RemoveHidden(state_);
  EXPECT_TRUE(std::filesystem::is_empty(state_ + "/kept"));
  EXPECT_THAT(JobDirectory::List(state_), SizeIs(1));
}

TEST_F(JobDirectoryTest, TheFolderOfAnOlderAgentIsRead) {
  std::filesystem::create_directory(state_ + "/jobs/dtrain-1f.2");
  const auto listed = JobDirectory::List(state_);
  ASSERT_THAT(listed, SizeIs(1));
  EXPECT_EQ(listed[0].job_id(), "dtrain-1f");
  EXPECT_EQ(listed[0].attempt(), 2u);
  EXPECT_EQ(listed[0].uid(), std::nullopt);
}

// I14
TEST_F(JobDirectoryTest, IdsThatAreNoPlainNamesAreRefused) {
  for (const std::string& id :
       {std::string("../up"), std::string("a/b"), std::string("."), std::string(""),
        std::string(65, 'a'), std::string("a b"), std::string("a\0b", 3)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(JobDirectory::Make(state_, {1000, id, 0}).status())) << id;
  }
  EXPECT_TRUE(std::filesystem::is_empty(state_ + "/jobs"));
}

// H11
TEST_F(JobDirectoryTest, APathThatIsTooLongForASocketIsToldWithTheLimit) {
  const std::string deep = state_ + "/" + std::string(100, 'd');
  std::filesystem::create_directories(deep + "/jobs");
  auto made = JobDirectory::Make(deep, {1000, "dtrain-1f", 0});
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("107 bytes"));
  EXPECT_TRUE(std::filesystem::is_empty(deep + "/jobs"));
}

TEST_F(JobDirectoryTest, ADamagedRecordIsNoRecord) {
  auto made = JobDirectory::Make(state_, {1000, "dtrain-1f", 0});
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(absl::IsNotFound(made->Read().status()));
  for (const std::string& bytes :
       {std::string(""), std::string("\x0a\x05"), std::string(100, 'x')}) {
    std::ofstream(made->path() + "/record", std::ios::trunc) << bytes;
    ASSERT_EQ(chmod((made->path() + "/record").c_str(), 0600), 0);
    EXPECT_TRUE(absl::IsDataLoss(made->Read().status())) << made->Read().status();
  }
}

TEST_F(JobDirectoryTest, ConnectsOnlyToWhoListens) {
  auto made = JobDirectory::Make(state_, {1000, "dtrain-1f", 0});
  ASSERT_TRUE(made.ok());
  EXPECT_FALSE(made->Connect().ok());
  os::UniqueFd bound = made->TakeSocket();
  ASSERT_EQ(listen(bound.get(), 1), 0);
  EXPECT_TRUE(made->Connect().ok());
}

}  // namespace
}  // namespace dtrain::session
