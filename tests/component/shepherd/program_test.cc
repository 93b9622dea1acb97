// SPDX-License-Identifier: Apache-2.0
// The program dtrain-shepherd as root installs it: to be executed, but not read, by its users.
#include <grp.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <filesystem>

#include "harness.h"
#include "tests/support/paths.h"

namespace dtrain::shepherd {
namespace {

using testing::IsEmpty;

constexpr uid_t kUser = 61234;  // nobody's

void BecomeUser() {
  if (setgroups(0, nullptr) != 0 || setresgid(kUser, kUser, kUser) != 0 ||
      setresuid(kUser, kUser, kUser) != 0) {
    _exit(126);
  }
}

class ShepherdProgramTest : public ShepherdTest {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can start programs as another user";
    char name[] = "/tmp/dtrain-program-test-XXXXXX";
    folder_ = mkdtemp(name);
    ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
    program_ = folder_ + "/dtrain-shepherd";
    std::filesystem::copy_file(ProgramPath("dtrain-shepherd"), program_);
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  void StartProgram(mode_t mode, v1::JobPart part) {
    ASSERT_EQ(chmod(program_.c_str(), mode), 0);
    Start(std::move(part), [this] {
      BecomeUser();
      setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // it cannot look into such a process
      execl(program_.c_str(), "dtrain-shepherd", "shepherd", nullptr);
      _exit(127);
    });
  }
  // What another process of the user can do to the shepherd's end of its socket: 0, or the error.
  template <typename Try>
  int AsItsUser(Try attempt) {
    const pid_t pid = fork();
    if (pid == 0) {
      BecomeUser();
      _exit(attempt() >= 0 ? 0 : errno);
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status));
    return WEXITSTATUS(status);
  }
  int LookAtItsSocket() {
    const std::string link = absl::StrCat("/proc/", shepherd_pid_, "/fd/3");
    return AsItsUser([&] {
      char target[64];
      return readlink(link.c_str(), target, sizeof(target));
    });
  }
  int TakeItsSocket() {
    return AsItsUser([this] {
      const auto pidfd = syscall(SYS_pidfd_open, shepherd_pid_, 0);
      return pidfd < 0 ? pidfd : syscall(SYS_pidfd_getfd, pidfd, 3, 0);
    });
  }

  std::string folder_, program_;
};

TEST_F(ShepherdProgramTest, RunsAWholeJob) {
  StartProgram(0711, Shell(2,
                           "id -u; cat /proc/self/environ > /dev/null && echo \"$RANK\" >&2; "
                           "exit $((RANK * 3))"));
  ASSERT_TRUE(UntilFinished());
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(Out(rank), absl::StrCat(kUser, "\n"));
    EXPECT_EQ(Err(rank), absl::StrCat(rank, "\n")) << "workers hide nothing from their user";
    EXPECT_EQ(exits_[rank].exit_code(), 3 * rank);
  }
  EXPECT_THAT(failures_, IsEmpty());
}

TEST_F(ShepherdProgramTest, ItsUsersOtherProcessesCannotTakeItsDescriptors) {
  StartProgram(0711, Shell(1, "sleep 1000"));
  ASSERT_TRUE(UntilStarted());
  EXPECT_EQ(LookAtItsSocket(), EACCES);
  EXPECT_THAT(TakeItsSocket(), testing::AnyOf(EPERM, ENOSYS)) << "Linux before 5.6 has no way";
  Stop(0);
  EXPECT_TRUE(UntilFinished());
}

// Why it must be installed so.
TEST_F(ShepherdProgramTest, OneThatCanBeReadIsOpenToThem) {
  StartProgram(0755, Shell(1, "sleep 1000"));
  ASSERT_TRUE(UntilStarted());
  EXPECT_EQ(LookAtItsSocket(), 0);
  Stop(0);
  EXPECT_TRUE(UntilFinished());
}

TEST_F(ShepherdProgramTest, StartsItsHelpersFromItself) {
  v1::JobPart part =
      Part(1, {"/bin/bash", "-c", "exec 5<>/dev/tcp/127.0.0.1/${PMIX_SERVER_URI##*:}; sleep 1000"});
  part.set_pmix(true);
  StartProgram(0711, std::move(part));
  ASSERT_TRUE(UntilStarted());
  EXPECT_TRUE(Until([this] { return !pmix_.empty() || !failures_.empty(); }));
  EXPECT_THAT(failures_, IsEmpty());
  ASSERT_THAT(pmix_, testing::SizeIs(1)) << "it runs, although its user is nobody whom NSS knows";
  EXPECT_TRUE(pmix_[0].has_ask());
  Stop(0);
  EXPECT_TRUE(UntilFinished());
  EXPECT_THAT(failures_, IsEmpty());
}

TEST_F(ShepherdProgramTest, ToldNothingItExplainsItself) {
  FILE* output = popen((program_ + " 2>&1").c_str(), "r");
  ASSERT_NE(output, nullptr);
  char line[200] = {};
  EXPECT_NE(fgets(line, sizeof(line), output), nullptr);
  EXPECT_THAT(line, testing::HasSubstr("dtrain-spawner starts it"));
  EXPECT_EQ(WEXITSTATUS(pclose(output)), 2);
}

}  // namespace
}  // namespace dtrain::shepherd
