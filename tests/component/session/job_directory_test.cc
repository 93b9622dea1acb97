// SPDX-License-Identifier: Apache-2.0
#include "agent/session/job_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/os/cgroup.h"
#include "common/os/pidfd.h"
#include "common/os/spawn.h"

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

// Anybody can give a socket such a name, in a folder of their own. (Before Linux 5.3 the kernel
// does not tell whose it is.)
TEST_F(JobDirectoryTest, AShepherdsSocketIsItsUsersOrRoots) {
  std::filesystem::permissions(state_, std::filesystem::perms(0755));
  std::filesystem::permissions(state_ + "/jobs", std::filesystem::perms(0777));
  const uid_t own = geteuid(), user = own == 0 ? 70'000'001 : own;
  uint32_t attempt = 0;
  const auto is_found = [&](uid_t maker, uid_t whose) {
    const spawn::JobKey key{whose, "dtrain-1f", attempt++};
    EXPECT_EQ(seteuid(maker), 0);
    auto made = JobDirectory::Make(state_, key);
    EXPECT_EQ(seteuid(own), 0);
    EXPECT_TRUE(made.ok()) << made.status();
    // A connection that waits has the socket's name, and nobody has made it.
    const os::UniqueFd socket = made->TakeSocket();
    EXPECT_EQ(listen(socket.get(), 1), 0);
    const auto waits = made->Connect();
    EXPECT_TRUE(waits.ok()) << waits.status();
    return JobDirectory::HasShepherd(key);
  };
  EXPECT_TRUE(is_found(user, user));
  EXPECT_FALSE(is_found(user, user + 1)) << "it is planted";
  if (own == 0) {
    EXPECT_TRUE(is_found(0, user)) << "root's agent has made it";
  }
}

// Likewise with a cgroup, where a user may make some.
TEST_F(JobDirectoryTest, AShepherdsCgroupHasAProcessOfItsUser) {
  const auto parent = os::FindWritableCgroup();
  if (!parent.ok()) GTEST_SKIP() << parent.status();
  const uid_t own = geteuid();
  for (const uid_t whose : {own, own + 1}) {
    const spawn::JobKey key{whose, absl::StrCat("dtrain-", getpid()), 0};
    const auto top = os::Cgroup::Make(*parent, absl::StrCat("test-", getpid()));
    ASSERT_TRUE(top.ok()) << top.status();
    auto inner = top;
    for (const std::string& name :
         {absl::StrCat("u", whose), absl::StrCat(key.job_id, ".0"), std::string("shepherd")}) {
      inner = os::Cgroup::Make(inner->path(), name);
      ASSERT_TRUE(inner.ok()) << inner.status();
    }
    const auto directory = inner->Open();
    ASSERT_TRUE(directory.ok()) << directory.status();
    os::SpawnSpec spec;
    spec.argv = {"/bin/sleep", "600"};
    spec.cgroup_fd = directory->get();
    const auto child = os::Spawn(spec);
    ASSERT_TRUE(child.ok()) << child.status();
    EXPECT_EQ(JobDirectory::HasShepherd(key), whose == own);
    top->Kill();
    EXPECT_TRUE(os::WaitAndReap(child->pidfd.get()).ok());
    const TimePoint end = Clock::now() + std::chrono::seconds(10);
    while (top->Populated() && Clock::now() < end) poll(nullptr, 0, 5);
    EXPECT_TRUE(top->Remove().ok());
  }
}

TEST_F(JobDirectoryTest, OneLookFindsTheShepherdsOfManyJobs) {
  std::set<spawn::JobKey> jobs, living;
  std::vector<JobDirectory> directories;
  for (uint32_t attempt = 0; attempt < 4; ++attempt) {
    const spawn::JobKey key{getuid(), "dtrain-1f", attempt};
    auto made = JobDirectory::Make(state_, key, /*with_socket=*/attempt % 2 == 0);
    ASSERT_TRUE(made.ok()) << made.status();
    if (attempt % 2 == 0) living.insert(key);
    jobs.insert(key);
    directories.push_back(*std::move(made));
  }
  EXPECT_EQ(JobDirectory::FindShepherds(jobs), living);
  EXPECT_EQ(JobDirectory::FindShepherds(jobs, 0), jobs) << "any may be among those not seen";
  JobDirectory::RemoveDead(directories);
  EXPECT_THAT(JobDirectory::List(state_), SizeIs(2));
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
