// SPDX-License-Identifier: Apache-2.0
// TORCHELASTIC_ERROR_FILE: what a worker leaves there, and what an attacker in its place would.
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <filesystem>
#include <thread>

#include "absl/strings/match.h"
#include "tests/component/shepherd/harness.h"

namespace dtrain::shepherd {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class ErrorFileTest : public ShepherdTest {
 protected:
  // The one worker runs `script` and fails; what it printed is the path of its file.
  void Fail(const std::string& script) {
    Start(Shell(
        1, absl::StrCat("F=$TORCHELASTIC_ERROR_FILE; printf %s \"$F\"; ", script, "; exit 1")));
    ASSERT_TRUE(UntilFinished());
    ASSERT_THAT(exits_, SizeIs(1));
    EXPECT_EQ(exits_[0].exit_code(), 1);
    EXPECT_THAT(failures_, IsEmpty());
    ExpectNoFolder(Out());
  }
  static void ExpectNoFolder(const std::string& file) {
    ASSERT_THAT(file, HasSubstr("/dtrain-"));
    EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(file).parent_path())) << file;
  }
  void ExpectRefused(const std::string& why) {
    EXPECT_EQ(exits_[0].error_file(), "");
    EXPECT_THAT(warnings_, Contains(HasSubstr(why)));
  }
};

TEST_F(ErrorFileTest, ComesWithTheExitOfAWorkerThatFailed) {
  Start(Shell(2,
              "printf %s $TORCHELASTIC_ERROR_FILE; echo $RANK > $TORCHELASTIC_ERROR_FILE; "
              "exit $RANK"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].error_file(), "") << "it has not failed";
  EXPECT_EQ(exits_[1].error_file(), "1\n");
  EXPECT_NE(Out(0), Out(1));
  ExpectNoFolder(Out(0));
  EXPECT_THAT(warnings_, Not(Contains(HasSubstr("ERROR_FILE"))));
}

TEST_F(ErrorFileTest, IsTheUsersAlone) {
  Fail("stat -c '%a %u' $(dirname $F) >&2; id -u >&2");
  EXPECT_EQ(Err(), absl::StrCat("700 ", geteuid(), "\n", geteuid(), "\n"));
}

TEST_F(ErrorFileTest, OneThatWasNotWrittenIsNothingToSpeakOf) {
  Fail("true");
  EXPECT_EQ(exits_[0].error_file(), "");
  EXPECT_THAT(warnings_, Not(Contains(HasSubstr("ERROR_FILE"))));
}

TEST_F(ErrorFileTest, AHugeOneIsReadToTheLimit) {
  Fail("printf abc > $F; truncate -s 1G $F");
  EXPECT_THAT(exits_[0].error_file(), SizeIs(64 << 10));
  EXPECT_TRUE(absl::StartsWith(exits_[0].error_file(), "abc"));
}

TEST_F(ErrorFileTest, AFifoHoldsNothingUp) {
  Fail("mkfifo $F");
  ExpectRefused("it is not a regular file");
}

TEST_F(ErrorFileTest, ALinkLeadsNowhere) {
  Fail("ln -s /etc/shadow $F");
  ExpectRefused("symbolic links");
}

TEST_F(ErrorFileTest, AFolderIsNoFileAndGoesToo) {
  Fail("mkdir -p $F/a/b; touch $F/a/b/c");
  ExpectRefused("it is not a regular file");
}

// The folder itself was replaced: what is read is in the one that we made.
TEST_F(ErrorFileTest, AFolderInItsPlaceIsNotEntered) {
  Fail("D=$(dirname $F); mv $D $D.gone; mkdir $D; echo planted > $F; rm -r $D.gone");
  EXPECT_EQ(exits_[0].error_file(), "");
}

TEST_F(ErrorFileTest, OneThatTheUserNamesIsNotOurs) {
  v1::JobPart part = Shell(1, "printf %s $TORCHELASTIC_ERROR_FILE; exit 1");
  v1::EnvVar* var = part.add_env();
  var->set_name("TORCHELASTIC_ERROR_FILE");
  var->set_value("/etc/hostname");
  part.add_explicit_env("TORCHELASTIC_ERROR_FILE");
  Start(std::move(part));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "/etc/hostname");
  EXPECT_EQ(exits_[0].error_file(), "");
}

TEST_F(ErrorFileTest, WhereNoFolderCanBeMadeThereIsNone) {
  bool may_mount = false;
  std::thread([&] { may_mount = unshare(CLONE_NEWNS) == 0; }).join();
  if (!may_mount) GTEST_SKIP() << "needs root, to mount";
  Start(Shell(1, "printf %s \"${TORCHELASTIC_ERROR_FILE-none}\"; exit 1"), [] {
    // Nothing can be written to where the shepherd looks.
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, "") != 0 ||
        mount("none", "/tmp", "tmpfs", MS_RDONLY, "") != 0 ||
        mount("none", "/var/tmp", "tmpfs", MS_RDONLY, "") != 0 ||
        mount("none", "/dev/shm", "tmpfs", MS_RDONLY, "") != 0) {
      _exit(77);
    }
    setenv("XDG_RUNTIME_DIR", "/tmp", 1);
    setenv("TMPDIR", "/tmp", 1);
  });
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "none");
  EXPECT_THAT(warnings_,
              Contains(HasSubstr("workers get no TORCHELASTIC_ERROR_FILE: cannot make")));
}

}  // namespace
}  // namespace dtrain::shepherd
