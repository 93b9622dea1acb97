// SPDX-License-Identifier: Apache-2.0
// What killed jobs have left in shared memory: the warning before a launch, and what dtrain-agent
// reap lists. In a /dev/shm of the test's own, which no reap elsewhere sees.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "agent/inventory/limits.h"
#include "common/base/clock.h"
#include "common/os/process_tree.h"
#include "common/os/shared_memory.h"
#include "common/os/unique_fd.h"
#include "tests/support/paths.h"

namespace dtrain::inventory {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kDead[] = "1999999999:5:no-such-boot";

// On a thread with mounts of its own. False, and nothing run, without the right to make them.
bool InSharedMemoryOfItsOwn(const std::function<void()>& body) {
  bool entered = false;
  std::thread([&] {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, nullptr) != 0) {
      return;
    }
    entered = true;
    body();
  }).join();
  return entered;
}

// An object of 4 kB that is open.
struct Made {
  explicit Made(const std::string& name)
      : path("/dev/shm/" + name), fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    EXPECT_EQ(write(fd.get(), std::string(4096, 'x').data(), 4096), 4096);
    struct stat status {};
    EXPECT_EQ(fstat(fd.get(), &status), 0);
    object = {false, status.st_dev, status.st_ino};
  }
  std::string path;
  os::UniqueFd fd;
  os::SharedMemory object;
};

// Of a look of its own: others may be answered by an earlier one.
std::string Warning(uid_t user) { return LeftMemoryWarnings().For(user); }

TEST(LeftMemoryWarningsTest, WhatDeadShepherdsRecordedIsToldToItsUser) {
  const bool entered = InSharedMemoryOfItsOwn([] {
    const Made left("left");
    const os::SharedMemoryRecord living(os::ProcessMark(getpid())), dead(kDead);
    living.Write({left.object});
    EXPECT_EQ(Warning(geteuid()), "");
    dead.Write({left.object});
    EXPECT_EQ(Warning(geteuid()),
              "earlier jobs of this user have left 1 object, 4 kB in /dev/shm; dtrain-agent reap "
              "removes what nobody uses");
    EXPECT_EQ(Warning(geteuid() + 1), "");
    ASSERT_EQ(unlink(left.path.c_str()), 0);
    EXPECT_EQ(Warning(geteuid()), "");
  });
  if (!entered) GTEST_SKIP() << "needs the right to mount";
}

// Launchers ask as often as they like.
TEST(LeftMemoryWarningsTest, AnAnswerServesForASecond) {
  const bool entered = InSharedMemoryOfItsOwn([] {
    LeftMemoryWarnings warnings;
    const Made left("left");
    const TimePoint begin = Clock::now();
    EXPECT_EQ(warnings.For(geteuid()), "");
    os::SharedMemoryRecord(kDead).Write({left.object});
    const std::string again = warnings.For(geteuid());
    if (Clock::now() - begin < std::chrono::seconds(1)) {  // else this machine was busy
      EXPECT_EQ(again, "");
    }
    const TimePoint end = begin + std::chrono::seconds(30);
    while (warnings.For(geteuid()).empty()) {
      ASSERT_LT(Clock::now(), end);
      poll(nullptr, 0, 10);
    }
  });
  if (!entered) GTEST_SKIP() << "needs the right to mount";
}

TEST(ReapTest, ListsWhatNobodyUsesAndNoLivingJobHasAClaimTo) {
  const bool entered = InSharedMemoryOfItsOwn([] {
    Made left("left"), claimed("claimed");
    const Made used("used"), unknown("unknown");
    left.fd.Reset();
    claimed.fd.Reset();
    os::SharedMemoryRecord(kDead).Write({left.object, claimed.object, used.object});
    os::SharedMemoryRecord(os::ProcessMark(getpid())).Write({claimed.object});
    setenv("AGENT", ProgramPath("dtrain-agent").c_str(), 1);  // it may have spaces
    FILE* const reap = popen("\"$AGENT\" reap --dry-run", "r");
    ASSERT_NE(reap, nullptr);
    std::string out;
    char bytes[4096];
    while (const size_t n = fread(bytes, 1, sizeof(bytes), reap)) out.append(bytes, n);
    EXPECT_EQ(pclose(reap), 0);
    EXPECT_THAT(out, HasSubstr("shared memory of jobs of user "));
    EXPECT_THAT(out, HasSubstr(": 1 object, 4 kB\n"));
    EXPECT_THAT(out, Not(HasSubstr("objects")));
    EXPECT_EQ(access(left.path.c_str(), F_OK), 0) << "it was only listed";
  });
  if (!entered) GTEST_SKIP() << "needs the right to mount";
}

}  // namespace
}  // namespace dtrain::inventory
