// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/os/fd.h"
#include "tests/component/inventory/tree.h"

namespace dtrain::inventory {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kMiB = 1 << 20;

// M12
TEST(LimitsTest, SmallOnesAreNamed) {
  EXPECT_THAT(WarningsOf({64 * kMiB, 8 * kMiB, true}),
              ElementsAre(AllOf(HasSubstr("/dev/shm has only 64 MiB"), HasSubstr("--shm-size")),
                          AllOf(HasSubstr("only 8 MiB"), HasSubstr("ulimit -l"))));
}

TEST(LimitsTest, OthersAreNot) {
  EXPECT_THAT(WarningsOf({65 * kMiB, 8 * kMiB, false}), IsEmpty());
  EXPECT_THAT(WarningsOf({std::nullopt, std::nullopt, true}), IsEmpty());
}

TEST(LimitsTest, AdaptersAreFound) {
  Tree tree;
  EXPECT_FALSE(ReadLockedMemory(tree.roots(), 0).rdma);
  tree.Write("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
  EXPECT_TRUE(ReadLockedMemory(tree.roots(), 0).rdma);
}

// A process with 1 MiB to lock, of an ordinary user where we can become one, until this goes.
class Limited {
 public:
  Limited() {
    auto pipe = os::Pipe();
    EXPECT_TRUE(pipe.ok());
    pid_ = fork();
    if (pid_ == 0) {
      const rlimit little = {kMiB, kMiB};
      const bool done = setrlimit(RLIMIT_MEMLOCK, &little) == 0 &&
                        (geteuid() != 0 || setresuid(kNobody, kNobody, kNobody) == 0);
      if (!done || write(pipe->second.get(), "x", 1) != 1) _exit(1);
      pause();
      _exit(0);
    }
    char byte = 0;
    pipe->second.Reset();
    EXPECT_EQ(read(pipe->first.get(), &byte, 1), 1);
  }
  ~Limited() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Limited(const Limited&) = delete;
  Limited& operator=(const Limited&) = delete;
  pid_t pid() const { return pid_; }

 private:
  static constexpr uid_t kNobody = 65534;
  pid_t pid_ = -1;
};

// M12: whatever this process may lock itself, as an agent of root does for its users.
TEST(LimitsTest, TheLimitIsThatOfTheProcessThatWorkersInheritItFrom) {
  Tree tree;
  tree.Write("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
  const Limited limited;
  const SmallLimits limits = ReadLockedMemory({tree.path("sys"), "/proc"}, limited.pid());
  EXPECT_EQ(limits.locked_memory_bytes, kMiB);
  EXPECT_THAT(WarningsOf(limits), ElementsAre(HasSubstr("only 1 MiB of memory may be locked")));
}

TEST(LimitsTest, WhoMayLockAnythingHasNoLimitButItsUsersHave) {
  Tree tree;
  tree.Write("proc/7/limits",
             "Limit                     Soft Limit           Hard Limit           Units     \n"
             "Max locked memory         8388608              unlimited            bytes     \n");
  tree.Write("proc/7/status", "CapEff:\t0000000000004000\n");  // CAP_IPC_LOCK
  EXPECT_EQ(ReadLockedMemory(tree.roots(), 7).locked_memory_bytes, std::nullopt);
  EXPECT_EQ(ReadLockedMemory(tree.roots(), 7, /*of_users=*/true).locked_memory_bytes, 8 * kMiB);
  tree.Write("proc/7/status", "CapEff:\t000001ffffffbfff\n");  // all others
  EXPECT_EQ(ReadLockedMemory(tree.roots(), 7).locked_memory_bytes, 8 * kMiB);
  tree.Write("proc/7/limits", "Max locked memory         unlimited            unlimited   bytes\n");
  EXPECT_EQ(ReadLockedMemory(tree.roots(), 7).locked_memory_bytes, std::nullopt);
}

}  // namespace
}  // namespace dtrain::inventory
