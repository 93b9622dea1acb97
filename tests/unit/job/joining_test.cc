// SPDX-License-Identifier: Apache-2.0
// What can fail before a worker runs.
#include <functional>

#include "common/base/exit_code.h"
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Kind = v1::SessionRequest::KindCase;

class JoiningTest : public JobFixture {
 public:
  void ExpectNothingStarted() {
    for (uint32_t i = 0; i < Size(); ++i) EXPECT_FALSE(Sends(all_, i, v1::JobRequest::kStart)) << i;
  }
};

// A15, B2: all bad hosts in one message.
TEST_F(JoiningTest, SeveralBadHostsAreToldInOneMessage) {
  Make(4);
  Feed(NodeConnected{NodeId(0)});
  Welcome(0);
  Closed(1, "cannot resolve the name");
  Pass(milliseconds(300));
  Closed(2, "permission denied (publickey)");
  Pass(milliseconds(300));
  EXPECT_FALSE(finished_);
  Closed(3, "cannot resolve the name");
  ASSERT_TRUE(finished_);  // at once: nobody is left to wait for
  EXPECT_EQ(verdict().kind, Verdict::Kind::kNode);
  EXPECT_EQ(verdict().exit_code, 200);
  EXPECT_THAT(verdict().message,
              AllOf(HasSubstr("3 of 4 nodes"), HasSubstr("node1, node3: cannot resolve the name"),
                    HasSubstr("node2: permission denied (publickey)")));
  ExpectNothingStarted();
}

// A15: hosts that do not exist are a mistake of the hostfile, unless anything else failed too.
TEST_F(JoiningTest, NamesThatDoNotExistAreAMistakeOfTheUser) {
  for (const bool mixed : {false, true}) {
    now_ = start_;
    finished_ = false;
    all_.clear();
    Make(4);
    Feed(NodeConnected{NodeId(0)});
    Welcome(0);
    UnknownHost(1);
    UnknownHost(3);
    if (mixed) {
      Closed(2);
    } else {
      Feed(NodeConnected{NodeId(2)});
      Welcome(2);
    }
    ASSERT_TRUE(finished_);
    EXPECT_EQ(verdict().exit_code, mixed ? 200 : 2);
    EXPECT_THAT(verdict().message, HasSubstr("node1, node3"));
    ExpectNothingStarted();
  }
}

// C3, C4: whoever joins another launch is refused before anything starts, in all states after as
// well.
TEST_F(JoiningTest, AnAgentOfAnotherLaunchIsRefused) {
  const std::vector<std::pair<std::function<void(v1::Welcome&)>, std::string>> wrong = {
      {[](auto& w) { w.set_job_id("other"); }, "belongs to job \"other\""},
      {[](auto& w) { w.set_incarnation("x"); }, "another launcher of job j1"},
      {[](auto& w) { w.set_attempt(7); }, "attempt 7"},
      {[](auto& w) { w.Clear(); }, "belongs to job \"\""}};
  for (const auto& [change, text] : wrong) {
    for (State state : {State::kConnecting, State::kProbing, State::kRunning}) {
      SCOPED_TRACE(absl::StrCat(text, " ", StateName(state)));
      now_ = start_;
      finished_ = false;
      all_.clear();
      Make(2);
      RunUntil(state);
      if (state == State::kConnecting) {
        Feed(NodeConnected{NodeId(0)});
        Feed(NodeConnected{NodeId(1)});
        Welcome(0);
      }
      v1::SessionEvent event;
      FillWelcome(Inventory(1), *event.mutable_welcome());
      change(*event.mutable_welcome());
      Message(1, event);
      if (state < State::kStarting) {
        Pass(milliseconds(500), {0, 1});
        ExpectNothingStarted();
      } else {
        EndAll();
      }
      ASSERT_TRUE(finished_);
      EXPECT_EQ(verdict().exit_code, state < State::kStarting ? 201 : 203);
      EXPECT_THAT(verdict().message, AllOf(HasSubstr("node1: rejected"), HasSubstr(text)));
    }
  }
}

// B11: one bad host takes the others down with it, soon.
TEST_F(JoiningTest, AfterAFailureTheOthersAreNotAwaitedForLong) {
  Make(3);
  Feed(NodeConnected{NodeId(0)});
  Welcome(0);
  Closed(1);
  Pass(milliseconds(499));
  EXPECT_FALSE(finished_);
  Pass(milliseconds(1));
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 200);
  EXPECT_EQ(verdict().message, "node1: reset");
  EXPECT_TRUE(Sends(all_, 0, Kind::kGoodbye));
  for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(Disconnects(all_, i)) << i;
}

TEST_F(JoiningTest, FailuresThatTrickleInAreNotAwaitedForEver) {
  Make(20);
  for (uint32_t i = 0; i < 19 && !finished_; ++i) {
    Closed(i);
    Pass(milliseconds(400));
  }
  EXPECT_TRUE(finished_);
  EXPECT_LE(now_ - start_, seconds(4));
}

TEST_F(JoiningTest, ANodeThatJoinedMayStillFailBeforeTheOthersCome) {
  Make(2);
  Feed(NodeConnected{NodeId(0)});
  Welcome(0);
  Closed(0, "agent died");
  Feed(NodeConnected{NodeId(1)});
  Welcome(1);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().message, "node0: agent died");
  ExpectNothingStarted();
}

// C1
TEST_F(JoiningTest, StartTimeoutNamesWhoIsMissingAndWhatEachWaitsFor) {
  options_.start_timeout = seconds(10);
  Make(4);
  Feed(NodeConnected{NodeId(0)});
  Welcome(0);
  Feed(NodePhase{NodeId(1), "ssh authentication"});
  Feed(NodeConnected{NodeId(2)});
  Pass(seconds(9), {0, 2});
  EXPECT_FALSE(finished_);
  Pass(seconds(1), {0, 2});
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kStartTimeout);
  EXPECT_EQ(verdict().exit_code, 201);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("10 s"), HasSubstr("node1 (ssh authentication)"),
                                       HasSubstr("node2 (its inventory)"),
                                       HasSubstr("node3 (connection)"), Not(HasSubstr("node0"))));
  ExpectNothingStarted();
}

// C1, C8: the same in each later state.
// K11: Ctrl-Z while connecting is no reason to give up the nodes.
TEST_F(JoiningTest, TheStartTimeoutDoesNotCountTimeInWhichWeStoodStill) {
  options_.start_timeout = seconds(100);
  options_.lease = seconds(15);
  Make(2);
  Pass(seconds(30));
  now_ += seconds(300);
  Feed(Tick{});
  EXPECT_EQ(core_->state(), State::kConnecting);
  Pass(seconds(66));
  EXPECT_EQ(core_->state(), State::kConnecting);
  Pass(seconds(5));
  EXPECT_EQ(verdict().kind, Verdict::Kind::kStartTimeout);
}

TEST_F(JoiningTest, StartTimeoutHoldsInEveryState) {
  for (State state : {State::kProbing, State::kHolding, State::kStarting}) {
    SCOPED_TRACE(StateName(state));
    now_ = start_;
    finished_ = false;
    all_.clear();
    options_.start_timeout = seconds(10);
    Make(2);
    RunUntil(state);
    ASSERT_EQ(core_->state(), state);
    Pass(seconds(10), {0, 1});
    if (state == State::kStarting) {
      EXPECT_EQ(core_->state(), State::kStopping);
      EndAll();
    }
    ASSERT_TRUE(finished_);
    EXPECT_EQ(verdict().exit_code, 201);
    EXPECT_THAT(verdict().message, HasSubstr("node0 ("));
  }
}

// C2
TEST_F(JoiningTest, AWelcomeThatIsRepeatedChangesNothing) {
  Make(2);
  Feed(NodeConnected{NodeId(0)});
  Welcome(0);
  EXPECT_TRUE(Welcome(0).empty());
  Feed(NodeConnected{NodeId(1)});
  Welcome(1);
  EXPECT_EQ(core_->state(), State::kProbing);
  EXPECT_TRUE(Welcome(0).empty());
  EXPECT_EQ(core_->state(), State::kProbing);
}

TEST_F(JoiningTest, AWelcomeOfAnotherMachineIsAFault) {
  Make(2);
  RunUntil(State::kRunning);
  v1::Inventory other = Inventory(0);
  other.set_boot_id("rebooted");
  Welcome(0, other);
  EXPECT_EQ(core_->state(), State::kStopping);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 203);
  EXPECT_EQ(verdict().message,
            "node0: rejected: it rejoined as a different machine: it was rebooted, or its name now "
            "resolves elsewhere");
}

// A6
TEST_F(JoiningTest, TwoNamesOfOneMachineAreRefusedAndBothNamed) {
  Make(3);
  for (uint32_t i = 0; i < 3; ++i) Feed(NodeConnected{NodeId(i)});
  Welcome(0);
  v1::Inventory twin = Inventory(2);
  twin.set_boot_id("boot0");
  Welcome(2, twin);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kRefused);
  EXPECT_EQ(verdict().exit_code, 2);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("node0"), HasSubstr("node2")));
}

// Two containers with the network of their host.
TEST_F(JoiningTest, TwoNamesOfOneMachineAreTwoNodesIfTheUserSaysSo) {
  options_.shared_machines = true;
  Make(2);
  for (uint32_t i = 0; i < 2; ++i) Feed(NodeConnected{NodeId(i)});
  Welcome(0);
  v1::Inventory twin = Inventory(0);
  twin.set_probe_port(Inventory(1).probe_port());
  twin.set_probe_reply(Inventory(1).probe_reply());
  Welcome(1, twin);
  EXPECT_FALSE(finished_);
  EXPECT_EQ(core_->state(), State::kProbing);
}

TEST_F(JoiningTest, TwoContainersOfOneMachineAreTwoNodes) {
  Make(2);
  for (uint32_t i = 0; i < 2; ++i) Feed(NodeConnected{NodeId(i)});
  Welcome(0);
  v1::Inventory other = Inventory(1);
  other.set_boot_id("boot0");
  other.set_network_namespace(8);
  Welcome(1, other);
  EXPECT_EQ(core_->state(), State::kProbing);
}

// A7
TEST_F(JoiningTest, APlanThatDoesNotFitIsRefusedBeforeAnythingStarts) {
  options_.plan.ranks = 9;
  Make(2);
  ConnectAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kRefused);
  EXPECT_EQ(verdict().exit_code, 2);
  EXPECT_THAT(verdict().message, HasSubstr("--oversubscribe"));
}

// H1: what a shepherd would refuse, when the workers of others run already.
TEST_F(JoiningTest, LimitsThatAreTooLowAreToldBeforeAnythingStarts) {
  struct Case {
    std::function<void(v1::Inventory&)> set;
    std::string part;
  };
  const std::vector<Case> cases = {
      {[](auto& i) { i.set_open_files_limit(51); }, "52 open files, and the limit is 51"},
      {[](auto& i) { i.set_processes_limit(3); }, "limit of 3 processes"},
      {[](auto& i) { i.set_cgroup_writable(false); }, "--require-cgroup"},
  };
  options_.part.set_require_cgroup(true);
  for (const Case& c : cases) {
    finished_ = false;
    all_.clear();
    Make(3);
    for (uint32_t i = 0; i < 3; ++i) {
      Feed(NodeConnected{NodeId(i)});
      v1::Inventory inventory = Inventory(i);
      inventory.set_open_files_limit(52);
      inventory.set_processes_limit(4);
      inventory.set_cgroup_writable(true);
      if (i > 0) c.set(inventory);
      Welcome(i, inventory);
    }
    ASSERT_TRUE(finished_) << c.part;
    EXPECT_EQ(verdict().kind, Verdict::Kind::kNode);
    EXPECT_EQ(verdict().exit_code, 200);
    EXPECT_THAT(verdict().message, AllOf(HasSubstr("node1, node2: "), HasSubstr(c.part)));
    EXPECT_FALSE(Sends(all_, 0, Kind::kProbe));
  }
}

TEST_F(JoiningTest, StdinOfARankThatDoesNotExistIsRefused) {
  options_.stdin_rank = "4";
  Make(2);
  ConnectAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 2);
  EXPECT_THAT(verdict().message, HasSubstr("--stdin 4"));
}

TEST_F(JoiningTest, APlanThatSomebodyElseRefusesStartsNothing) {
  options_.check_plan = [](const plan::Plan& plan) {
    return absl::InvalidArgumentError(absl::StrCat("no room for ", plan.world_size));
  };
  Make(2);
  ConnectAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 2);
  EXPECT_EQ(verdict().message, "no room for 4");
  EXPECT_FALSE(Sends(all_, 0, Kind::kProbe));
}

TEST_F(JoiningTest, ANetThatFitsNoNodeIsRefused) {
  options_.net = "192.168.0.0/16";
  Make(2);
  ConnectAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 2);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("--net 192.168.0.0/16"), HasSubstr("10.0.0.1")));
}

TEST_F(JoiningTest, UnreachableNodesAreNamedWithTheirErrors) {
  Make(2);
  ConnectAll();
  Probed(0, false);
  Probed(1, true);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 201);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("node0 cannot reach node1 at 10.0.0.2"),
                                       HasSubstr("Connection refused")));
  ExpectNothingStarted();
}

TEST_F(JoiningTest, TheOtherAddressesAreTriedWhenTheBestAreNotReached) {
  Make(2);
  for (uint32_t i = 0; i < 2; ++i) {
    Feed(NodeConnected{NodeId(i)});
    v1::Inventory inventory = Inventory(i);
    v1::Interface& fast = *inventory.add_interfaces();
    fast = inventory.interfaces(0);
    fast.set_name("ib0");
    fast.set_speed_mbps(200000);
    fast.mutable_addresses(0)->set_ip(absl::StrCat("10.9.0.", i + 1));
    Welcome(i, inventory);
  }
  EXPECT_EQ(SentTo(0).back().probe().targets().size(), 1);
  EXPECT_EQ(SentTo(0).back().probe().targets(0).ip(), "10.9.0.2");
  Probed(0, true);
  Probed(1, false);
  ASSERT_EQ(core_->state(), State::kProbing);
  EXPECT_EQ(SentTo(0).back().probe().targets().size(), 2);
  v1::SessionEvent event;
  for (uint32_t node : {0, 1}) {
    event.mutable_probe_report()->clear_outcomes();
    v1::ProbeOutcome& outcome = *event.mutable_probe_report()->add_outcomes();
    outcome.set_node(1 - node);
    outcome.set_ip(absl::StrCat("10.0.0.", 2 - node));
    outcome.set_reached(true);
    Message(node, event);
  }
  ASSERT_EQ(core_->state(), State::kHolding);
  PortsHeld(0);
  EXPECT_EQ(PartOf(0).network().master_address(), "10.0.0.1");
}

TEST_F(JoiningTest, ANodeThatLeavesWhileAddressesAreProvenEndsTheLaunch) {
  for (State state : {State::kProbing, State::kHolding}) {
    SCOPED_TRACE(StateName(state));
    finished_ = false;
    all_.clear();
    Make(2);
    RunUntil(state);
    Closed(1, "cut");
    if (state == State::kProbing) ProbeAll();
    if (state == State::kHolding) PortsHeld(0);
    ExpectNothingStarted();
    Pass(milliseconds(500), {0});
    ASSERT_TRUE(finished_);
    EXPECT_EQ(verdict().exit_code, 200);
    EXPECT_EQ(verdict().message, "node1: cut");
  }
}

TEST_F(JoiningTest, AJoinedNodeThatFallsSilentIsLost) {
  options_.lease = seconds(5);
  Make(2);
  Feed(NodeConnected{NodeId(0)});
  Welcome(0);
  Feed(NodeConnected{NodeId(1)});
  Pass(seconds(6), {1});
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("node0"), HasSubstr("5 s")));
}

// 28: cut off, or stopped, between its connection and its inventory, which has no lease of its own.
TEST_F(JoiningTest, ANodeThatFallsSilentBeforeItJoinsIsLost) {
  options_.lease = seconds(5);
  Make(2);
  Feed(NodeConnected{NodeId(0)});
  Feed(NodeConnected{NodeId(1)});
  Pass(seconds(3), {0});
  Welcome(0);
  Pass(seconds(3), {0});
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("node1: no message"), HasSubstr("5 s")));
}

// An inventory may take long, its driver hangs for example: the agent says meanwhile that it lives.
TEST_F(JoiningTest, ANodeThatTakesItsInventoryIsAwaited) {
  options_.lease = seconds(5);
  Make(1);
  Feed(NodeConnected{NodeId(0)});
  Pass(seconds(30), {0});
  EXPECT_FALSE(finished_);
  Welcome(0);
  PortsHeld(0);
  EXPECT_EQ(core_->state(), State::kStarting);
}

TEST_F(JoiningTest, AnAgentThatRefusesIsTold) {
  Make(2);
  ConnectAll();
  Failure(1, v1::NodeFailure::KIND_RESOURCES, 200, "no file descriptor left");
  Pass(milliseconds(500));
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 200);
  EXPECT_EQ(verdict().message, "node1: no file descriptor left");
}

TEST_F(JoiningTest, WrongPortsAreTheAgentsFault) {
  for (const std::vector<uint32_t>& ports :
       std::vector<std::vector<uint32_t>>{{}, {5001}, {5001, 5001}, {0, 5001}, {5001, 70000}}) {
    finished_ = false;
    all_.clear();
    Make(2);
    RunUntil(State::kHolding);
    PortsHeld(0, ports);
    ExpectNothingStarted();
    Pass(seconds(1));
    EXPECT_TRUE(finished_);
    EXPECT_EQ(verdict().exit_code, 201);
  }
}

// C6
TEST_F(JoiningTest, StartedForAForeignOrRepeatedRankIsAFault) {
  for (const std::vector<uint32_t>& ranks : {std::vector<uint32_t>{2}, {0, 0}, {99}}) {
    finished_ = false;
    all_.clear();
    Make(2);
    RunUntil(State::kStarting);
    v1::JobEvent event;
    for (uint32_t rank : ranks) event.mutable_started()->add_workers()->set_rank(rank);
    Message(0, event);
    EXPECT_EQ(core_->state(), State::kStopping);
    EndAll();
    EXPECT_EQ(verdict().exit_code, 201);
  }
}

// A13, A14: told once, with all hosts, and the code of a shell.
TEST_F(JoiningTest, ACommandThatIsNotThereIsToldOnceForAllNodes) {
  Make(3);
  RunUntil(State::kStarting);
  const auto actions = Failure(0, v1::NodeFailure::KIND_SPAWN, 127, "prog: not found");
  for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(Sends(actions, i, v1::JobRequest::kStop)) << i;
  Failure(1, v1::NodeFailure::KIND_SPAWN, 127, "prog: not found");
  Failure(2, v1::NodeFailure::KIND_SPAWN, 127, "prog: not found");
  EndAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 127);
  EXPECT_EQ(verdict().message, "node0, node1, node2: prog: not found");
}

// H4: a resident agent that cannot take the job on is told that nobody will come back to it.
TEST_F(JoiningTest, ANodeThatRefusesIsLetGo) {
  Make(2);
  for (uint32_t i = 0; i < 2; ++i) Feed(NodeConnected{NodeId(i)});
  Welcome(0);
  Failure(1, v1::NodeFailure::KIND_STATE, 207, "no space left on device");
  Pass(seconds(2), {0, 1});
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 207);
  for (uint32_t i = 0; i < 2; ++i) EXPECT_TRUE(Sends(all_, i, Kind::kGoodbye)) << i;
}

TEST_F(JoiningTest, WhoIsNotLetInHasACodeOfItsOwn) {
  Make(1);
  Feed(NodeConnected{NodeId(0)});
  Feed(NodeClosed{NodeId(0), absl::PermissionDeniedError("observer may not launch on this node"),
                  /*unknown_host=*/false, /*not_authorised=*/true, /*started_anew=*/false});
  Pass(seconds(1), {});
  EndAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 206);
  EXPECT_THAT(verdict().message, HasSubstr("observer may not launch"));
}

// A slow node answers long after the first, and all are told in the hostfile's order.
TEST_F(JoiningTest, ACommandThatIsNotThereIsToldForLateNodesToo) {
  Make(3);
  RunUntil(State::kStarting);
  Failure(2, v1::NodeFailure::KIND_SPAWN, 127, "prog: not found");
  now_ += seconds(1);
  Failure(0, v1::NodeFailure::KIND_SPAWN, 127, "prog: not found");
  now_ += seconds(1);
  Failure(1, v1::NodeFailure::KIND_SPAWN, 127, "prog: not found");
  EndAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().message, "node0, node1, node2: prog: not found");
}

TEST_F(JoiningTest, EventsOfUnknownNodesAreDropped) {
  Make(1);
  EXPECT_TRUE(Feed(NodeConnected{NodeId(7)}).empty());
  EXPECT_TRUE(Closed(7).empty());
  EXPECT_TRUE(Drained(7).empty());
  EXPECT_EQ(core_->state(), State::kConnecting);
}

// ---- jobs that outlive their terminal -----------------------------------------------------

TEST_F(JoiningTest, ADetachedJobIsRefusedWhereALogoutWouldEndIt) {
  for (const uint64_t generation : {uint64_t{0}, uint64_t{1}}) {
    options_.generation = generation;
    finished_ = false;
    all_.clear();
    Make(1);
    Feed(NodeConnected{NodeId(0)});
    v1::SessionEvent event;
    FillWelcome(Inventory(0), *event.mutable_welcome());
    event.mutable_welcome()->set_ends_at_logout(
        "KillUserProcesses=yes in /etc/systemd/logind.conf");
    Message(0, event);
    EXPECT_EQ(finished_, generation > 0);
    if (generation == 0) continue;
    EXPECT_EQ(verdict().exit_code, kExitStartAgents);
    EXPECT_THAT(verdict().message, testing::HasSubstr("KillUserProcesses=yes"));
  }
}

TEST_F(JoiningTest, ADetachedJobIsWarnedWhereALogoutTakesSharedMemory) {
  options_.generation = 1;
  Make(1);
  Feed(NodeConnected{NodeId(0)});
  v1::SessionEvent event;
  FillWelcome(Inventory(0), *event.mutable_welcome());
  event.mutable_welcome()->set_removes_ipc_at_logout("RemoveIPC=yes, its default");
  Message(0, event);
  ASSERT_EQ(Warnings().size(), 1);
  EXPECT_THAT(Warnings()[0], testing::HasSubstr("loginctl enable-linger"));
}

}  // namespace
}  // namespace dtrain::job
