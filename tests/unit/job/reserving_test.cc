// SPDX-License-Identifier: Apache-2.0
#include "common/base/exit_code.h"
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using Kind = v1::SessionRequest::KindCase;

// Nodes whose agents keep books, with four cores and no GPU; a rank takes a core.
class ReservingTest : public JobFixture {
 public:
  ReservingTest() { options_.plan.ranks_per_node = 2; }
  v1::Inventory Booked(uint32_t node, const std::string& held = "") {
    v1::Inventory inventory = Inventory(node);
    inventory.set_reserves(true);
    if (!held.empty()) {
      inventory.add_held_cores()->set_cpulist(held);
      inventory.mutable_held_cores(0)->set_holder("job a of alice");
    }
    return inventory;
  }
  void JoinAll(const std::string& held_on_0 = "") {
    for (uint32_t i = 0; i < Size(); ++i) {
      Feed(NodeConnected{NodeId(i)});
      Welcome(i, Booked(i, i == 0 ? held_on_0 : ""));
    }
  }
  std::vector<Action> Reserved(uint32_t node, const std::string& refused = "") {
    v1::SessionEvent event;
    event.mutable_reserved()->set_refused(refused);
    return Message(node, event);
  }
  std::vector<Action> Seen(uint32_t node, const std::string& held = "") {
    v1::SessionEvent event;
    *event.mutable_inventory() = Booked(node, held);
    event.mutable_inventory()->clear_probe_reply();
    return Message(node, event);
  }
  std::vector<uint32_t> All() const {
    std::vector<uint32_t> all;
    for (uint32_t i = 0; i < Size(); ++i) all.push_back(i);
    return all;
  }
  // What the node was last asked to reserve.
  v1::Reserve Asked(uint32_t node) const {
    v1::Reserve last;
    for (const v1::SessionRequest& request : SentTo(node)) {
      if (request.has_reserve()) last = request.reserve();
    }
    return last;
  }
  size_t Looks(uint32_t node) const {
    size_t looks = 0;
    for (const v1::SessionRequest& request : SentTo(node)) looks += request.has_look_again();
    return looks;
  }
};

TEST_F(ReservingTest, NothingStartsBeforeAllIsReserved) {
  Make(2);
  JoinAll();
  EXPECT_EQ(Asked(0).cpulist(), "0,2");
  EXPECT_EQ(Asked(1).cpulist(), "0,2");
  ProbeAll();
  Reserved(1);
  PortsHeld(0);
  EXPECT_EQ(core_->state(), State::kHolding);
  Reserved(0);
  EXPECT_EQ(core_->state(), State::kStarting);
  EXPECT_FALSE(PartOf(0).shares_cores());
}

TEST_F(ReservingTest, AgentsThatKeepNoBooksAreNotAsked) {
  Make(2);
  RunUntil(State::kStarting);
  EXPECT_EQ(core_->state(), State::kStarting);
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_FALSE(Sends(all_, i, Kind::kReserve));
  }
}

TEST_F(ReservingTest, SharedCoresAreNotReserved) {
  options_.plan.oversubscribe = true;
  Make(1);
  JoinAll("0-3");
  EXPECT_EQ(Asked(0).cpulist(), "");
  Reserved(0);
  PortsHeld(0);
  EXPECT_TRUE(PartOf(0).shares_cores());
}

TEST_F(ReservingTest, WhatOthersHaveEndsTheLaunch) {
  Make(2);
  JoinAll("0-3");
  EXPECT_EQ(verdict().exit_code, kExitStartAgents);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("node0: 2 ranks, and 0 of 4 cores are free"),
                                       HasSubstr("held by job a of alice"), HasSubstr("--wait")));
}

TEST_F(ReservingTest, WhatDoesNotFitAnywayIsNotWaitedFor) {
  options_.wait = seconds(60);
  options_.plan.ranks_per_node = 2;
  options_.plan.ranks = 9;
  Make(2);
  JoinAll("0-3");
  EXPECT_EQ(verdict().exit_code, kExitUsage);
}

TEST_F(ReservingTest, WaitsForWhatOthersGiveBack) {
  options_.wait = seconds(300);  // longer than the start timeout
  options_.start_timeout = seconds(10);
  Make(2);
  JoinAll("0-3");
  EXPECT_EQ(core_->state(), State::kConnecting);
  EXPECT_THAT(Warnings(), Contains(AllOf(HasSubstr("waiting, up to 300 s"), HasSubstr("alice"))));
  for (size_t look = 1; look <= 60; ++look) {
    Pass(seconds(1), All());
    ASSERT_EQ(Looks(0), look);
    Seen(1);
    Seen(0, "0-3");
  }
  EXPECT_EQ(Warnings().size(), 1u) << "told once";
  Pass(seconds(1), All());
  Seen(0);
  EXPECT_EQ(core_->state(), State::kConnecting);
  Seen(1);
  ASSERT_EQ(core_->state(), State::kProbing);
  ProbeAll();
  Reserved(0);
  Reserved(1);
  PortsHeld(0);
  EXPECT_EQ(core_->state(), State::kStarting);
}

TEST_F(ReservingTest, TheWaitHasAnEnd) {
  options_.wait = seconds(5);
  Make(1);
  JoinAll("0-3");
  for (int i = 0; i < 5 && core_->state() == State::kConnecting; ++i) {
    Pass(seconds(1), All());
    if (core_->state() == State::kConnecting) Seen(0, "0-3");
  }
  EXPECT_EQ(verdict().exit_code, kExitStartAgents);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("not free within 5 s"), HasSubstr("alice")));
}

// Two launches see the same cores free, and one is first.
TEST_F(ReservingTest, ARaceThatIsLostEndsTheLaunch) {
  Make(2);
  JoinAll();
  ProbeAll();
  Reserved(0);
  Reserved(1, "held: cores 0-3 by job b of bob");
  EXPECT_EQ(core_->state(), State::kHolding) << "first what is under way";
  PortsHeld(0);
  EXPECT_EQ(verdict().exit_code, kExitStartAgents);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("node1: held"), HasSubstr("job b of bob")));
}

TEST_F(ReservingTest, ARaceThatIsLostIsWaitedFor) {
  options_.wait = seconds(60);
  Make(2);
  JoinAll();
  ProbeAll();
  Reserved(0);
  Reserved(1, "held: cores 0-3 by job b of bob");
  PortsHeld(0);
  ASSERT_EQ(core_->state(), State::kConnecting);
  EXPECT_EQ(Asked(0).cpulist(), "") << "given back";
  Reserved(0);
  Reserved(1);
  Pass(seconds(1), All());
  Seen(0);
  Seen(1);
  ASSERT_EQ(core_->state(), State::kProbing);
  EXPECT_EQ(Asked(0).cpulist(), "0,2");
  ProbeAll();
  Reserved(1);
  Reserved(0);
  PortsHeld(0);
  ASSERT_EQ(core_->state(), State::kStarting);
  Started(0);
  Started(1);
  EXPECT_EQ(core_->state(), State::kRunning);
}

TEST_F(ReservingTest, ANodeLostWhileWaitingEndsTheWait) {
  options_.wait = seconds(600);
  Make(2);
  JoinAll("0-3");
  Closed(1, "connection reset");
  EXPECT_EQ(core_->state(), State::kFinished);
  EXPECT_THAT(verdict().message, HasSubstr("connection reset"));
}

TEST_F(ReservingTest, AnswersUnaskedAreFaults) {
  Make(1);
  ConnectAll();
  Reserved(0);
  EXPECT_NE(core_->state(), State::kStarting);
  PortsHeld(0);
  Pass(seconds(5));
  EXPECT_THAT(verdict().message, HasSubstr("Reserved unasked"));
}

}  // namespace
}  // namespace dtrain::job
