// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/quarantine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/os/pidfd.h"
#include "common/os/process_tree.h"
#include "common/os/spawn.h"

// D7. The kernel's own judgement is in the cluster's test_unkillable.py: here any process will do.
namespace dtrain::spawn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

os::Child Sleeper() {
  os::SpawnSpec spec;
  spec.argv = {"/bin/sleep", "600"};
  spec.env = {"PATH=/usr/bin:/bin"};
  auto child = os::Spawn(spec);
  EXPECT_TRUE(child.ok());
  return *std::move(child);
}

void End(const os::Child& child) {
  ASSERT_EQ(kill(child.pid, SIGKILL), 0);
  EXPECT_TRUE(os::WaitAndReap(child.pidfd.get()).ok());
}

const Owner kAlice{1001, "alice"}, kBob{1002, "bob"};
constexpr Duration kBound = std::chrono::seconds(2);
constexpr Duration kLookPause = std::chrono::milliseconds(250);

os::ProcessInfo InfoOf(const os::Child& child) { return os::FindProcess(child.pid).value(); }

TEST(QuarantineTest, LastsAsLongAsTheProcess) {
  Quarantine quarantine;
  const TimePoint now = Clock::now();
  EXPECT_EQ(quarantine.Why(now, kAlice.uid), "");
  os::Child child = Sleeper();
  quarantine.Killed(now, "job-1", kAlice, {InfoOf(child)});
  quarantine.Killed(now + kBound / 2, "job-1", kAlice, {InfoOf(child)});
  const std::string named = absl::StrCat("pid ", child.pid, " of job job-1, user alice (state ");
  const std::string why = quarantine.Why(now + kBound, kAlice.uid);
  EXPECT_THAT(why, AllOf(HasSubstr(named), HasSubstr("kernel log"), Not(HasSubstr(" more"))));
  EXPECT_EQ(why.find(named), why.rfind(named)) << "told once";
  End(child);
  EXPECT_EQ(quarantine.Why(now + kBound + kLookPause, kAlice.uid), "");
}

// A user may have a thousand jobs.
TEST(QuarantineTest, LooksForOneUsersProcessesTakeAPartOfTheLoop) {
  Quarantine quarantine;
  const TimePoint now = Clock::now();
  constexpr Duration kTook = std::chrono::milliseconds(100);
  EXPECT_LE(quarantine.LooksFrom(kAlice.uid), now);
  quarantine.Looked(kAlice.uid, now, now + kTook, 10);
  EXPECT_EQ(quarantine.LooksFrom(kAlice.uid), now + 11 * kTook);
  quarantine.Looked(kAlice.uid, now + kTook, now + 2 * kTook, 10);  // of another job
  EXPECT_EQ(quarantine.LooksFrom(kAlice.uid), now + 21 * kTook);
  EXPECT_LE(quarantine.LooksFrom(kBob.uid), now);
}

// Every Hello asks, of any user.
TEST(QuarantineTest, AProcessIsLookedAtFourTimesASecondAtMost) {
  Quarantine quarantine;
  const TimePoint now = Clock::now();
  os::Child child = Sleeper();
  quarantine.Killed(now, "job-1", kAlice, {InfoOf(child)});
  const std::string why = quarantine.Why(now + kBound, kAlice.uid);
  EXPECT_NE(why, "");
  End(child);
  const TimePoint look = now + kBound + kLookPause;
  EXPECT_EQ(quarantine.Why(look - std::chrono::milliseconds(1), kAlice.uid), why);
  EXPECT_EQ(quarantine.Why(look, kAlice.uid), "");
}

TEST(QuarantineTest, OfAJobOfManyProcessesSomeAreRemembered) {
  Quarantine quarantine;
  TimePoint now = Clock::now();
  std::vector<os::Child> children;
  std::vector<os::ProcessInfo> processes;
  for (size_t i = 0; i < Quarantine::kMostOfJob + 6; ++i) {
    children.push_back(Sleeper());
    processes.push_back(InfoOf(children.back()));
  }
  processes.back().state = 'D';
  os::Child another = Sleeper();
  quarantine.Killed(now, "job-1", kAlice, processes);
  quarantine.Killed(now, "job-2", kAlice, {InfoOf(another)});
  now += kBound;
  EXPECT_THAT(quarantine.Why(now, kAlice.uid), HasSubstr(" and 62 more")) << "64 and one";
  // Where some have ended there is room for the others.
  for (size_t i = 0; i < 10; ++i) End(children[i]);
  quarantine.Killed(now, "job-1", kAlice, processes);
  now += kBound;
  EXPECT_THAT(quarantine.Why(now, kAlice.uid), HasSubstr(" and 58 more")) << "60 and one";
  for (size_t i = 10; i < children.size(); ++i) End(children[i]);
  End(another);
  EXPECT_EQ(quarantine.Why(now + kLookPause, kAlice.uid), "");
}

// They may all end but the one that does not.
TEST(QuarantineTest, WhatWaitsInTheKernelIsRememberedFirst) {
  Quarantine quarantine;
  const TimePoint now = Clock::now();
  std::vector<os::Child> children;
  std::vector<os::ProcessInfo> processes;
  for (size_t i = 0; i < Quarantine::kMostOfJob + 1; ++i) {
    children.push_back(Sleeper());
    processes.push_back(InfoOf(children.back()));
  }
  processes.back().state = 'D';
  quarantine.Killed(now, "job-1", kAlice, processes);
  for (size_t i = 0; i < Quarantine::kMostOfJob; ++i) End(children[i]);
  EXPECT_THAT(quarantine.Why(now + kBound, kAlice.uid),
              HasSubstr(absl::StrCat("pid ", children.back().pid, " of job job-1")));
  End(children.back());
}

TEST(QuarantineTest, AProcessHasTimeToEnd) {
  Quarantine quarantine;
  const TimePoint now = Clock::now();
  os::Child child = Sleeper();
  quarantine.Killed(now, "job-1", kAlice, {InfoOf(child)});
  EXPECT_EQ(quarantine.Why(now + kBound - std::chrono::milliseconds(1), kAlice.uid), "");
  EXPECT_NE(quarantine.Why(now + kBound, kAlice.uid), "");
  End(child);
}

TEST(QuarantineTest, OneAfterTheOtherIsNone) {
  Quarantine quarantine;
  TimePoint now = Clock::now();
  for (int i = 0; i < 5; ++i) {
    os::Child child = Sleeper();
    EXPECT_EQ(quarantine.Kill(now, "job-1", kAlice, {InfoOf(child)}), 1);
    EXPECT_TRUE(os::WaitAndReap(child.pidfd.get()).ok());
    now += kBound / 2;
    EXPECT_EQ(quarantine.Why(now, kAlice.uid), "");
  }
}

TEST(QuarantineTest, WhatHasEndedIsNotTakenIn) {
  Quarantine quarantine;
  const TimePoint now = Clock::now();
  os::Child child = Sleeper();
  const os::ProcessInfo info = InfoOf(child);
  End(child);
  quarantine.Killed(now, "job-1", kAlice, {info});
  EXPECT_EQ(quarantine.Why(now + kBound, kAlice.uid), "");
}

// A file system of alice's own may hold it, and would never let go.
TEST(QuarantineTest, OneUsersProcessCostsThatUser) {
  Quarantine quarantine;
  const TimePoint now = Clock::now();
  os::Child of_alice = Sleeper(), of_bob = Sleeper();
  quarantine.Killed(now, "job-1", kAlice, {InfoOf(of_alice)});
  EXPECT_EQ(quarantine.Why(now + kBound, kBob.uid), "");
  EXPECT_THAT(quarantine.Why(now + kBound, kAlice.uid),
              HasSubstr("quarantined for alice: it takes no jobs of that user's"));
  EXPECT_THAT(quarantine.Why(now + kBound, std::nullopt), HasSubstr("for alice"));
  // Two of them have no such file system in common.
  quarantine.Killed(now, "job-2", kBob, {InfoOf(of_bob)});
  EXPECT_THAT(quarantine.Why(now + kBound, 1003), HasSubstr("quarantined: it takes no jobs while"));
  End(of_alice);
  End(of_bob);
}

TEST(QuarantineTest, TheDriverIsKnownByItsModules) {
  EXPECT_TRUE(Quarantine::IsInDriver(
      "[<0>] os_acquire_rwlock_write+0x35/0x40 [nvidia]\n[<0>] do_syscall_64+0x3f/0x90\n"));
  EXPECT_TRUE(Quarantine::IsInDriver("[<0>] uvm_down_write+0x1/0x2 [nvidia_uvm]\n"));
  EXPECT_FALSE(Quarantine::IsInDriver("[<0>] request_wait_answer+0x1/0x2 [fuse]\n"));
  EXPECT_FALSE(Quarantine::IsInDriver(""));
}

TEST(QuarantineTest, FuseIsKnownByWhereAProcessWaits) {
  EXPECT_TRUE(Quarantine::IsOfFuse("request_wait_answer"));
  EXPECT_TRUE(Quarantine::IsOfFuse("request_wait_answer.isra.0"));
  EXPECT_TRUE(Quarantine::IsOfFuse("__fuse_request_send"));
  EXPECT_TRUE(Quarantine::IsOfFuse("fuse_wait_on_page_writeback"));
  for (const char* other : {"unknown", "rpc_wait_bit_killable", "do_fuse_", ""}) {
    EXPECT_FALSE(Quarantine::IsOfFuse(other)) << other;
  }
}

// The node is closed to all when something holds processes of two users that neither can make.
TEST(QuarantineTest, WhatWaitsForFuseClosesTheNodeToItsUsersAlone) {
  static std::set<pid_t> of_fuse;
  const Owner carol{1003, "carol"};
  const os::Child alices = Sleeper(), bobs = Sleeper();
  for (const int in_fuse : {2, 1, 0}) {
    of_fuse.clear();
    if (in_fuse > 0) of_fuse.insert(alices.pid);
    if (in_fuse > 1) of_fuse.insert(bobs.pid);
    Quarantine quarantine([](pid_t pid) -> std::string {
      return of_fuse.contains(pid) ? "request_wait_answer" : "rpc_wait_bit_killable";
    });
    const TimePoint now = Clock::now();
    quarantine.Killed(now, "job-1", kAlice, {InfoOf(alices)});
    quarantine.Killed(now, "job-1", kBob, {InfoOf(bobs)});
    for (const Owner& held : {kAlice, kBob}) {
      EXPECT_THAT(
          quarantine.Why(now + kBound, held.uid),
          HasSubstr(in_fuse > 0 ? "quarantined for alice, bob: it takes no jobs from these users"
                                : "quarantined: it takes no jobs while"));
    }
    EXPECT_EQ(quarantine.Why(now + kBound, carol.uid).empty(), in_fuse > 0) << in_fuse;
  }
  End(alices);
  End(bobs);
}

TEST(QuarantineTest, ManyAreCounted) {
  Quarantine quarantine;
  const TimePoint now = Clock::now();
  std::vector<os::Child> children;
  for (int i = 0; i < 5; ++i) children.push_back(Sleeper());
  // In which order they are named.
  std::sort(children.begin(), children.end(),
            [](const os::Child& a, const os::Child& b) { return a.pid < b.pid; });
  for (const os::Child& child : children) {
    quarantine.Killed(now, "job-1", kAlice, {InfoOf(child)});
  }
  EXPECT_THAT(
      quarantine.Why(now + kBound, kAlice.uid),
      AllOf(HasSubstr(absl::StrCat("pid ", children[2].pid, " ")),
            Not(HasSubstr(absl::StrCat("pid ", children[3].pid, " "))), HasSubstr(" and 2 more")));
  for (const os::Child& child : children) End(child);
  EXPECT_EQ(quarantine.Why(now + kBound + kLookPause, kAlice.uid), "");
}

}  // namespace
}  // namespace dtrain::spawn
