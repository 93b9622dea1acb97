// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using testing::HasSubstr;

// Which hosts are there, what they have, and which of their addresses the others reach.
class SurveyTest : public JobFixture {
 public:
  SurveyTest() { options_.survey = true; }
  void JoinAndProbe() {
    for (uint32_t i = 0; i < Size(); ++i) {
      Feed(NodeConnected{NodeId(i)});
      Welcome(i, Reserving(i));
    }
    for (uint32_t i = 0; i < Size(); ++i) Probed(i);
  }
  // All of its cores are another job's, or another run's of this one.
  v1::Inventory Reserving(uint32_t node) {
    v1::Inventory inventory = Inventory(node);
    inventory.set_reserves(true);
    inventory.add_held_cores()->set_cpulist("0-3");
    inventory.mutable_held_cores(0)->set_holder("job a of alice");
    return inventory;
  }
};

TEST_F(SurveyTest, EndsWithTheAddressesAndReservesNothing) {
  Make(3);
  JoinAndProbe();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kSuccess) << verdict().message;
  ASSERT_EQ(core_->addresses().size(), 3);
  EXPECT_EQ(core_->addresses()[1].ip, "10.0.0.2");
  EXPECT_EQ(core_->addresses()[1].interface_name, "eth0");
  EXPECT_EQ(core_->addresses()[1].network, "10.0.0.0/24");
  EXPECT_EQ(core_->plan().nodes[2].workers.size(), 2);
  for (uint32_t i = 0; i < Size(); ++i) {
    for (const v1::SessionRequest& request : SentTo(i)) {
      EXPECT_FALSE(request.has_reserve() || request.has_hold_ports()) << request.DebugString();
    }
    EXPECT_TRUE(JobSentTo(i).empty());
  }
}

TEST_F(SurveyTest, OfOneHostNeedsNoProbe) {
  Make(1);
  options_.net = "10.0.0.1";
  MakeCore();
  Feed(NodeConnected{NodeId(0)});
  Welcome(0);
  ASSERT_TRUE(finished_);
  ASSERT_EQ(core_->addresses().size(), 1);
  EXPECT_EQ(core_->addresses()[0].ip, "10.0.0.1");
}

TEST_F(SurveyTest, HostsThatAreNotThereAreLeftOut) {
  options_.min_nodes = 1;
  Make(3);
  Feed(NodeClosed{NodeId(1), absl::UnavailableError("connection refused")});
  for (const uint32_t i : {0u, 2u}) {
    Feed(NodeConnected{NodeId(i)});
    Welcome(i);
  }
  for (const uint32_t i : {0u, 2u}) Probed(i);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kSuccess) << verdict().message;
  ASSERT_EQ(core_->plan().nodes.size(), 2);
  EXPECT_EQ(core_->plan().nodes[1].entry.host, "node2");
  EXPECT_EQ(core_->addresses()[1].ip, "10.0.0.3");
}

// Nobody connects to it.
TEST_F(SurveyTest, TheOnlyOneOfSeveralThatIsThereHasLoopback) {
  options_.min_nodes = 1;
  Make(2);
  Feed(NodeClosed{NodeId(1), absl::UnavailableError("connection refused")});
  Feed(NodeConnected{NodeId(0)});
  Welcome(0);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kSuccess) << verdict().message;
  ASSERT_EQ(core_->addresses().size(), 1);
  EXPECT_EQ(core_->addresses()[0].ip, "127.0.0.1");
}

TEST_F(SurveyTest, HostsThatMayComeYetAreAbsent) {
  for (const char* passes : {"connection refused", ""}) {
    finished_ = false;
    options_.min_nodes = 1;
    Make(2);
    for (const uint32_t i : {0u, 1u}) {
      NodeClosed closed{NodeId(i), absl::PermissionDeniedError("no session")};
      closed.passes = passes;
      Feed(std::move(closed));
    }
    ASSERT_TRUE(finished_);
    EXPECT_EQ(verdict().kind, Verdict::Kind::kNode);
    EXPECT_EQ(verdict().absent, *passes != '\0') << verdict().message;
  }
}

TEST_F(SurveyTest, HostsThatDoNotReachEachOtherFailIt) {
  Make(2);
  for (uint32_t i = 0; i < Size(); ++i) {
    Feed(NodeConnected{NodeId(i)});
    Welcome(i);
  }
  Probed(0);
  Probed(1, /*reached=*/false);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 201);
  EXPECT_THAT(verdict().message, HasSubstr("Connection refused"));
}

}  // namespace
}  // namespace dtrain::job
