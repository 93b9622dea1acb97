// SPDX-License-Identifier: Apache-2.0
#include "common/os/process_facts.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/spawn.h"

namespace dtrain::os {
namespace {

// A program whose standard input is a pipe that stays empty.
class Waiting {
 public:
  explicit Waiting(std::vector<std::string> argv) {
    auto pipe = Pipe();
    EXPECT_TRUE(pipe.ok());
    writer_ = std::move(pipe->second);
    SpawnSpec spec;
    spec.argv = std::move(argv);
    spec.stdin_fd = pipe->first.get();
    auto child = Spawn(spec);
    EXPECT_TRUE(child.ok()) << child.status();
    child_ = *std::move(child);
    struct stat status;
    EXPECT_EQ(fstat(writer_.get(), &status), 0);
    name_ = absl::StrCat("pipe:[", status.st_ino, "]");
  }
  ~Waiting() {
    kill(child_.pid, SIGKILL);
    EXPECT_TRUE(WaitAndReap(child_.pidfd.get()).ok());
  }
  pid_t pid() const { return child_.pid; }
  std::optional<bool> waits() const { return WaitsForInput(child_.pid, name_); }
  // Until it sleeps in a system call of that number, as the kernel's file says.
  bool SleepsIn(const std::string& number) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < deadline) {
      const auto text = ReadSmallFile(absl::StrCat("/proc/", child_.pid, "/syscall"));
      if (text.ok() && text->substr(0, text->find(' ')) == number) return true;
      std::this_thread::yield();
    }
    return false;
  }

 private:
  UniqueFd writer_;
  Child child_;
  std::string name_;
};

std::string Number(long call) { return std::to_string(call); }

TEST(ProcessFactsTest, OneThatReadsItsInputWaits) {
  const Waiting cat({"/bin/cat"});
  ASSERT_TRUE(cat.SleepsIn(Number(SYS_read)));
  EXPECT_EQ(cat.waits(), true);
  EXPECT_EQ(WaitsForInput(cat.pid(), "pipe:[1]"), false);
}

TEST(ProcessFactsTest, OneThatSleepsDoesNotWaitForInput) {
  const Waiting sleep({"/bin/sleep", "600"});
  ASSERT_TRUE(sleep.SleepsIn(Number(SYS_clock_nanosleep)));
  EXPECT_EQ(sleep.waits(), false);
}

TEST(ProcessFactsTest, OneThatPollsItsInputWaits) {
  const Waiting python(
      {"/usr/bin/python3", "-c", "import select; p = select.poll(); p.register(0); p.poll()"});
#ifdef SYS_poll
  ASSERT_TRUE(python.SleepsIn(Number(SYS_poll)));
#else
  ASSERT_TRUE(python.SleepsIn(Number(SYS_ppoll)));
#endif
  EXPECT_EQ(python.waits(), true);
}

TEST(ProcessFactsTest, WhatIsWrittenHasAPlace) {
  char name[] = "/tmp/dtrain-facts-XXXXXX";
  const UniqueFd file(mkstemp(name));
  ASSERT_TRUE(file);
  const UniqueFd reader(open(name, O_RDONLY | O_CLOEXEC));
  const std::string text(5000, 'x');
  ASSERT_EQ(write(file.get(), text.data(), text.size()), 5000);
  bool found = false;
  for (const FileBeingWritten& each : FilesBeingWritten(getpid(), 100)) {
    if (each.path != name) continue;
    EXPECT_FALSE(found) << "the one that is open for reading";
    found = true;
    EXPECT_EQ(each.position, 5000u);
  }
  EXPECT_TRUE(found);
  std::filesystem::remove(name);
}

}  // namespace
}  // namespace dtrain::os
