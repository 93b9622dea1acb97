// SPDX-License-Identifier: Apache-2.0
#include "common/os/bounded_look.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "common/os/file_system.h"
#include "common/os/pidfd.h"
#include "common/os/unique_fd.h"

// H13
namespace dtrain::os {
namespace {

TEST(BoundedLook, ALookThatReturnsIsAwaited) {
  EXPECT_TRUE(ReturnsWithin(std::chrono::seconds(60), [] {}));
  EXPECT_FALSE(HasChildren());
}

TEST(BoundedLook, OneThatDoesNotIsGivenUpAndLeavesNobody) {
  EXPECT_FALSE(ReturnsWithin(std::chrono::milliseconds(20), [] {
    while (true) pause();
  }));
  while (EndedChild() != 0) ReapQuietly(EndedChild());
  EXPECT_FALSE(HasChildren());
}

TEST(BoundedLook, WhatItDoesStaysInItsProcess) {
  int found = 1;
  EXPECT_TRUE(ReturnsWithin(std::chrono::seconds(60), [&] { found = 2; }));
  EXPECT_EQ(found, 1);
}

TEST(BoundedLook, WhereNothingIsLateNobodyIsTold) {
  AwaitReturn(
      std::chrono::seconds(60), [] {}, [] { ADD_FAILURE(); });
  EXPECT_FALSE(HasChildren());
}

TEST(BoundedLook, OneThatIsLateIsToldOfOnceAndAwaited) {
  char directory[] = "/tmp/dtrain-look-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const std::string fifo = std::string(directory) + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  int told = 0;
  // The look waits in open() for a writer.
  AwaitReturn(
      std::chrono::milliseconds(20), [&] { const UniqueFd reader(open(fifo.c_str(), O_RDONLY)); },
      [&] {
        ++told;
        const UniqueFd writer(open(fifo.c_str(), O_WRONLY));
      });
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(HasChildren());
  unlink(fifo.c_str());
  rmdir(directory);
}

bool CanTell() {  // Linux 5.12
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_CACHED;
  return static_cast<bool>(
      UniqueFd(static_cast<int>(syscall(SYS_openat2, AT_FDCWD, "/", &how, sizeof(how)))));
}

std::string TypeOf(const char* path) {
  const UniqueFd fd(open(path, O_PATH | O_CLOEXEC));
  return FileSystemOf(fd.get()).value_or("none");
}

bool HasADisk(const char* path) {
  struct stat about {};
  return stat(path, &about) == 0 && major(about.st_dev) != 0;
}

TEST(BoundedLook, OnlyWhatLiesOnADiskIsAtHand) {
  if (HasADisk("/")) {
    EXPECT_EQ(IsAtHand("/"), CanTell());
    EXPECT_EQ(IsAtHand("/."), CanTell());
    EXPECT_EQ(AnswersAtOnce("/"), CanTell());
  }
  for (const char* served : {"/proc/self", "/no/such/folder"}) EXPECT_FALSE(IsAtHand(served));
  EXPECT_FALSE(AnswersAtOnce("/proc/self"));
  EXPECT_FALSE(AnswersAtOnce("no/such/folder"));
}

// It has no device either, as file systems of other machines.
TEST(BoundedLook, WhatLiesInMemoryIsAtHand) {
  if (TypeOf("/dev/shm") != "tmpfs") return;
  EXPECT_EQ(IsAtHand("/dev/shm"), CanTell());
  EXPECT_EQ(AnswersAtOnce("/dev/shm"), CanTell());
}

// In a container, which pays for no process there. Its programs may come from anywhere.
TEST(BoundedLook, AnOverlayAnswersAtOnce) {
  if (TypeOf("/") != "overlay") return;  // there
  EXPECT_FALSE(IsAtHand("/"));
  EXPECT_EQ(AnswersAtOnce("/"), CanTell());
}

// As the folder of a user who has not launched a job yet.
TEST(BoundedLook, WhatIsMissingOnADiskAnswersAtOnce) {
  if (!HasADisk("/")) return;
  const char* missing = "/no-such-folder-of-dtrain/jobs";
  EXPECT_NE(access(missing, F_OK), 0);  // now the kernel knows
  EXPECT_FALSE(IsAtHand(missing));
  EXPECT_EQ(AnswersAtOnce(missing), CanTell());
}

}  // namespace
}  // namespace dtrain::os
