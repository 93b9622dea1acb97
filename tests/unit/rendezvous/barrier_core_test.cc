// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/barrier_core.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"

namespace dtrain::rendezvous {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const JoinKey kKey{"job", 2, "incarnation"};

Machine MachineOf(int i) { return {absl::StrCat("boot", i), 1}; }

TEST(BarrierCoreTest, IsCompleteWhenAllHaveJoined) {
  BarrierCore barrier(kKey, {"a", "b"});
  EXPECT_TRUE(barrier.Join(NodeId(1), kKey, MachineOf(1)).ok());
  EXPECT_FALSE(barrier.complete());
  EXPECT_TRUE(barrier.has_joined(NodeId(1)));
  EXPECT_FALSE(barrier.has_joined(NodeId(0)));
  EXPECT_TRUE(barrier.Join(NodeId(0), kKey, MachineOf(0)).ok());
  EXPECT_TRUE(barrier.complete());
}

// C2
TEST(BarrierCoreTest, TheSameJoinAgainIsFine) {
  BarrierCore barrier(kKey, {"a", "b"});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(barrier.Join(NodeId(0), kKey, MachineOf(0)).ok());
  EXPECT_EQ(barrier.joined(), 1u);
}

TEST(BarrierCoreTest, ANodeMayNotBecomeAnotherMachine) {
  BarrierCore barrier(kKey, {"a"});
  EXPECT_TRUE(barrier.Join(NodeId(0), kKey, MachineOf(0)).ok());
  EXPECT_FALSE(barrier.Join(NodeId(0), kKey, MachineOf(1)).ok());
}

// C3
TEST(BarrierCoreTest, AnotherAttemptIsStale) {
  BarrierCore barrier(kKey, {"a"});
  const absl::Status status = barrier.Join(NodeId(0), {"job", 1, "incarnation"}, MachineOf(0));
  EXPECT_THAT(std::string(status.message()), HasSubstr("stale epoch"));
  EXPECT_EQ(barrier.joined(), 0u);
}

// C4, C7
TEST(BarrierCoreTest, AnotherJobOrLauncherIsRefused) {
  BarrierCore barrier(kKey, {"a"});
  EXPECT_TRUE(
      absl::IsPermissionDenied(barrier.Join(NodeId(0), {"other", 2, "incarnation"}, MachineOf(0))));
  EXPECT_TRUE(absl::IsPermissionDenied(barrier.Join(NodeId(0), {"job", 2, "x"}, MachineOf(0))));
  EXPECT_EQ(barrier.joined(), 0u);
}

// C9
TEST(BarrierCoreTest, WhoIsNotInTheListIsRefused) {
  BarrierCore barrier(kKey, {"a"});
  EXPECT_FALSE(barrier.Join(NodeId(1), kKey, MachineOf(1)).ok());
  EXPECT_TRUE(barrier.Join(NodeId(0), kKey, MachineOf(0)).ok());
  EXPECT_FALSE(barrier.Join(NodeId(1), kKey, MachineOf(1)).ok());
}

// A6
TEST(BarrierCoreTest, TwoNamesOfOneMachineAreRefused) {
  BarrierCore barrier(kKey, {"a", "b", "c"});
  EXPECT_TRUE(barrier.Join(NodeId(0), kKey, {"boot", 1}).ok());
  const absl::Status twin = barrier.Join(NodeId(2), kKey, {"boot", 1});
  EXPECT_TRUE(absl::IsAlreadyExists(twin));
  EXPECT_THAT(std::string(twin.message()), HasSubstr("a and c"));
  EXPECT_EQ(barrier.joined(), 1u);
  EXPECT_TRUE(barrier.Join(NodeId(1), kKey, {"boot", 2}).ok());  // another container
}

TEST(BarrierCoreTest, WithoutABootIdNoMachineIsTakenForAnother) {
  BarrierCore barrier(kKey, {"a", "b"});
  EXPECT_TRUE(barrier.Join(NodeId(0), kKey, {"", 1}).ok());
  EXPECT_TRUE(barrier.Join(NodeId(1), kKey, {"", 1}).ok());
}

// C1
TEST(BarrierCoreTest, NamesTheMissingAndWhatTheyWaitFor) {
  BarrierCore barrier(kKey, {"a", "b", "c"});
  EXPECT_TRUE(barrier.Join(NodeId(0), kKey, MachineOf(0)).ok());
  barrier.SetWaitingFor(NodeId(1), "ssh authentication");
  barrier.SetWaitingFor(NodeId(9), "nothing");
  EXPECT_EQ(FormatMissing(barrier.missing()), "b (ssh authentication), c");
}

// C12
TEST(BarrierCoreTest, TenThousandNodesJoin) {
  std::vector<std::string> hosts;
  for (int i = 0; i < 10000; ++i) hosts.push_back(absl::StrCat("n", i));
  BarrierCore barrier(kKey, hosts);
  for (int i = 0; i < 10000; ++i) {
    ASSERT_TRUE(barrier.Join(NodeId(i), kKey, MachineOf(i)).ok());
  }
  EXPECT_TRUE(barrier.complete());
}

TEST(FormatHostsTest, CountsWhatItDoesNotName) {
  EXPECT_EQ(FormatHosts({}), "");
  EXPECT_EQ(FormatHosts({"a", "b"}, 2), "a, b");
  EXPECT_EQ(FormatHosts({"a", "b", "c", "d"}, 2), "a, b and 2 more");
}

TEST(BarrierCoreTest, HostsMayBeOneMachineIfTheUserSaysSo) {
  BarrierCore core({"j", 0, "i"}, {"a", "b"}, /*shared=*/true);
  EXPECT_TRUE(core.Join(NodeId(0), {"j", 0, "i"}, {"boot", 7}).ok());
  EXPECT_TRUE(core.Join(NodeId(1), {"j", 0, "i"}, {"boot", 7}).ok());
  EXPECT_TRUE(core.complete());
}

}  // namespace
}  // namespace dtrain::rendezvous
