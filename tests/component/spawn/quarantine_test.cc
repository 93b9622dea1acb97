// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/quarantine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

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

constexpr Duration kBound = std::chrono::seconds(2);

os::ProcessInfo InfoOf(const os::Child& child) { return os::FindProcess(child.pid).value(); }

TEST(QuarantineTest, LastsAsLongAsTheProcess) {
  Quarantine quarantine;
  const TimePoint now = Clock::now();
  EXPECT_EQ(quarantine.Why(now), "");
  os::Child child = Sleeper();
  quarantine.Killed(now, "job-1", "alice", {InfoOf(child)});
  quarantine.Killed(now + kBound / 2, "job-1", "alice", {InfoOf(child)});
  const std::string named = absl::StrCat("pid ", child.pid, " of job job-1, user alice (state ");
  const std::string why = quarantine.Why(now + kBound);
  EXPECT_THAT(why, AllOf(HasSubstr(named), HasSubstr("kernel log"), Not(HasSubstr(" more"))));
  EXPECT_EQ(why.find(named), why.rfind(named)) << "told once";
  End(child);
  EXPECT_EQ(quarantine.Why(now + kBound), "");
}

TEST(QuarantineTest, AProcessHasTimeToEnd) {
  Quarantine quarantine;
  const TimePoint now = Clock::now();
  os::Child child = Sleeper();
  quarantine.Killed(now, "job-1", "alice", {InfoOf(child)});
  EXPECT_EQ(quarantine.Why(now + kBound - std::chrono::milliseconds(1)), "");
  EXPECT_NE(quarantine.Why(now + kBound), "");
  End(child);
}

TEST(QuarantineTest, OneAfterTheOtherIsNone) {
  Quarantine quarantine;
  TimePoint now = Clock::now();
  for (int i = 0; i < 5; ++i) {
    os::Child child = Sleeper();
    EXPECT_EQ(quarantine.Kill(now, "job-1", "alice", {InfoOf(child)}), 1);
    EXPECT_TRUE(os::WaitAndReap(child.pidfd.get()).ok());
    now += kBound / 2;
    EXPECT_EQ(quarantine.Why(now), "");
  }
}

TEST(QuarantineTest, WhatHasEndedIsNotTakenIn) {
  Quarantine quarantine;
  const TimePoint now = Clock::now();
  os::Child child = Sleeper();
  const os::ProcessInfo info = InfoOf(child);
  End(child);
  quarantine.Killed(now, "job-1", "alice", {info});
  EXPECT_EQ(quarantine.Why(now + kBound), "");
}

TEST(QuarantineTest, ManyAreCounted) {
  Quarantine quarantine;
  const TimePoint now = Clock::now();
  std::vector<os::Child> children;
  for (int i = 0; i < 5; ++i) children.push_back(Sleeper());
  for (const os::Child& child : children) {
    quarantine.Killed(now, "job-1", "alice", {InfoOf(child)});
  }
  EXPECT_THAT(
      quarantine.Why(now + kBound),
      AllOf(HasSubstr(absl::StrCat("pid ", children[2].pid, " ")),
            Not(HasSubstr(absl::StrCat("pid ", children[3].pid, " "))), HasSubstr(" and 2 more")));
  for (const os::Child& child : children) End(child);
  EXPECT_EQ(quarantine.Why(now + kBound), "");
}

}  // namespace
}  // namespace dtrain::spawn
