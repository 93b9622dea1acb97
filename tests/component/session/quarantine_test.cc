// SPDX-License-Identifier: Apache-2.0
#include "agent/session/quarantine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "common/os/pidfd.h"
#include "common/os/spawn.h"

// D7. The kernel's own judgement is in the cluster's test_unkillable.py: here any process will do.
namespace dtrain::session {
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

TEST(QuarantineTest, LastsAsLongAsTheProcess) {
  Quarantine quarantine;
  EXPECT_EQ(quarantine.Why(), "");
  os::Child child = Sleeper();
  quarantine.Add("job-1", "alice", {child.pid});
  quarantine.Add("job-1", "alice", {child.pid});
  const std::string named = absl::StrCat("pid ", child.pid, " of job job-1, user alice (state ");
  const std::string why = quarantine.Why();
  EXPECT_THAT(why, AllOf(HasSubstr(named), HasSubstr("kernel log"), Not(HasSubstr(" more"))));
  EXPECT_EQ(why.find(named), why.rfind(named)) << "told once";
  End(child);
  EXPECT_EQ(quarantine.Why(), "");
}

TEST(QuarantineTest, WhatHasEndedIsNotTakenIn) {
  Quarantine quarantine;
  os::Child child = Sleeper();
  const pid_t pid = child.pid;
  End(child);
  quarantine.Add("job-1", "alice", {pid});
  EXPECT_EQ(quarantine.Why(), "");
}

TEST(QuarantineTest, ManyAreCounted) {
  Quarantine quarantine;
  std::vector<os::Child> children;
  for (int i = 0; i < 5; ++i) children.push_back(Sleeper());
  for (const os::Child& child : children) quarantine.Add("job-1", "alice", {child.pid});
  EXPECT_THAT(quarantine.Why(), AllOf(HasSubstr(absl::StrCat("pid ", children[2].pid, " ")),
                                      Not(HasSubstr(absl::StrCat("pid ", children[3].pid, " "))),
                                      HasSubstr(" and 2 more")));
  for (const os::Child& child : children) End(child);
  EXPECT_EQ(quarantine.Why(), "");
}

}  // namespace
}  // namespace dtrain::session
