// SPDX-License-Identifier: Apache-2.0
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "agent/shepherd/node_caches.h"
#include "agent/shepherd/preflight.h"
#include "tests/component/shepherd/harness.h"

namespace dtrain::shepherd {
namespace {

using ::testing::HasSubstr;

class InheritedTest : public ShepherdTest {
 protected:
  void Limit(v1::JobPart& part, __rlimit_resource resource, uint64_t soft, bool exact) {
    v1::SoftLimit& limit = *part.mutable_inherited()->add_limits();
    limit.set_resource(static_cast<uint32_t>(resource));
    limit.set_soft(soft);
    limit.set_exact(exact);
  }
  static void SetOwn(__rlimit_resource resource, rlim_t soft, rlim_t hard) {
    const rlimit limit{soft, hard};
    if (setrlimit(resource, &limit) != 0) _exit(97);
  }
  std::string Out() { return Read(0, v1::STREAM_KIND_STDOUT); }
};

TEST_F(InheritedTest, WorkersHaveTheLaunchersUmaskNiceAndLimits) {
  const int nice = std::min(getpriority(PRIO_PROCESS, 0) + 4, 19);
  v1::JobPart part = Shell(1, "umask; nice; ulimit -Sn; ulimit -Ss");
  part.mutable_inherited()->set_umask(0037);
  part.mutable_inherited()->set_nice(nice);
  Limit(part, RLIMIT_NOFILE, 3000, /*exact=*/true);
  Limit(part, RLIMIT_STACK, 16 << 20, /*exact=*/false);
  Start(part, [] {
    umask(0);
    SetOwn(RLIMIT_NOFILE, 4000, 4000);
    SetOwn(RLIMIT_STACK, 8 << 20, RLIM_INFINITY);
  });
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), absl::StrCat("0037\n", nice, "\n3000\n16384\n"));
}

TEST_F(InheritedTest, ALimitThatMayOnlyBeRaisedIsNotLoweredAndNoneExceedsTheHardOne) {
  v1::JobPart part = Shell(1, "ulimit -Sn; ulimit -Ss");
  Limit(part, RLIMIT_NOFILE, 5000, /*exact=*/true);
  Limit(part, RLIMIT_STACK, 4 << 20, /*exact=*/false);
  Start(part, [] {
    SetOwn(RLIMIT_NOFILE, 1024, 4000);
    SetOwn(RLIMIT_STACK, 8 << 20, RLIM_INFINITY);
  });
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "4000\n8192\n");
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_[0], HasSubstr("open files 4000, not 5000"));
}

// A launcher before this: nothing is said of it.
TEST_F(InheritedTest, WithoutAWordWorkersHaveWhatTheShepherdHas) {
  Start(Shell(1, "umask"), [] { umask(0026); });
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "0026\n");
}

TEST_F(InheritedTest, ANiceThatTheAgentMayNotSetIsToldAndFailsNothing) {
  const int nice = std::min(getpriority(PRIO_PROCESS, 0), 17);
  v1::JobPart part = Shell(1, "nice");
  part.mutable_inherited()->set_nice(nice);
  Start(part, [nice] {
    if (setpriority(PRIO_PROCESS, 0, nice + 2) != 0) _exit(97);
    // Without CAP_SYS_NICE, as users have it.
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
    if (syscall(SYS_capget, &header, data) != 0) _exit(97);
    data[0].effective &= ~(1u << CAP_SYS_NICE);
    data[0].permitted &= ~(1u << CAP_SYS_NICE);
    if (syscall(SYS_capset, &header, data) != 0) _exit(97);
  });
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].exit_code(), 0);
  EXPECT_EQ(Out(), absl::StrCat(nice + 2, "\n"));
  // Unless it had ended before it was looked at.
  for (const std::string& warning : warnings_) {
    if (absl::StrContains(warning, "cgroup")) continue;  // which a reap elsewhere may remove
    EXPECT_THAT(warning, HasSubstr(absl::StrCat("nice ", nice + 2, ", not ", nice)));
  }
}

TEST(NiceTroubleTest, SaysWhatRanksHave) {
  EXPECT_EQ(NiceTrouble(5, 5), "");
  EXPECT_THAT(NiceTrouble(0, 5), HasSubstr("nice 5, not 0"));
}

class NodeCachesTest : public ::testing::Test {
 protected:
  NodeCachesTest() {
    char name[] = "/tmp/dtrain-caches-XXXXXX";
    place_ = mkdtemp(name);
    own_ = absl::StrCat(place_, "/dtrain-", geteuid());
    (void)chmod(place_.c_str(), 01777);
  }
  ~NodeCachesTest() override { (void)!system(absl::StrCat("rm -rf ", place_).c_str()); }
  NodeCaches Choose(v1::NodeCaches wanted) {
    return ChooseNodeCaches(wanted, {absl::StrCat("HOME=", place_)}, {place_});
  }
  std::string place_, own_;
};

TEST_F(NodeCachesTest, AHomeOnTheNodesOwnDiskNeedsNone) {
  for (const v1::NodeCaches wanted :
       {v1::NODE_CACHES_AUTO, v1::NODE_CACHES_OFF, v1::NODE_CACHES_UNSPECIFIED}) {
    const NodeCaches caches = Choose(wanted);
    EXPECT_EQ(caches.folder, "");
    EXPECT_EQ(caches.why, "");
  }
  EXPECT_NE(access(own_.c_str(), F_OK), 0);
}

TEST_F(NodeCachesTest, TheFolderIsTheUsersAloneAndStays) {
  const NodeCaches caches = Choose(v1::NODE_CACHES_ON);
  EXPECT_EQ(caches.folder, own_ + "/caches") << caches.trouble;
  struct stat info {};
  ASSERT_EQ(stat((caches.folder + "/triton").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  std::ofstream(caches.folder + "/triton/kernel") << "kept";
  EXPECT_EQ(Choose(v1::NODE_CACHES_ON).folder, caches.folder);
  EXPECT_EQ(access((caches.folder + "/triton/kernel").c_str(), F_OK), 0);
}

// Another user was there first, with a folder or a link to one of his own.
TEST_F(NodeCachesTest, WhatAnotherUserHasPreparedIsNotUsed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs another user";
  const std::string theirs = place_ + "/theirs";
  for (const bool link : {false, true}) {
    ASSERT_EQ(mkdir((link ? theirs : own_).c_str(), 0777), 0);
    ASSERT_TRUE(!link || symlink(theirs.c_str(), own_.c_str()) == 0);
    ASSERT_EQ(lchown(own_.c_str(), 65534, 65534), 0);
    ASSERT_EQ(lchown((link ? theirs : own_).c_str(), 65534, 65534), 0);
    const NodeCaches caches = Choose(v1::NODE_CACHES_ON);
    ASSERT_NE(caches.folder, "") << caches.trouble;
    EXPECT_THAT(caches.folder, HasSubstr(own_ + "."));
    EXPECT_EQ(Choose(v1::NODE_CACHES_ON).folder, caches.folder) << "it is found again";
    (void)!system(absl::StrCat("rm -rf ", own_, "*").c_str());
  }
}

TEST_F(NodeCachesTest, APlaceThatTakesNothingIsToldAndTheNextIsTried) {
  const std::string full = place_ + "/file";
  std::ofstream(full.c_str()) << "no folder";
  const std::vector<std::string> env = {"HOME=/"};
  const NodeCaches none = ChooseNodeCaches(v1::NODE_CACHES_ON, env, {full});
  EXPECT_EQ(none.folder, "");
  EXPECT_THAT(none.trouble.message(), HasSubstr(full));
  EXPECT_EQ(ChooseNodeCaches(v1::NODE_CACHES_ON, env, {full, place_}).folder, own_ + "/caches");
}

}  // namespace
}  // namespace dtrain::shepherd
