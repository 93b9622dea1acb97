// SPDX-License-Identifier: Apache-2.0
// Who failed first, lost nodes, fences that cannot complete.
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Kind = v1::SessionRequest::KindCase;

class RunningTest : public JobFixture {};

// D1
TEST_F(RunningTest, TheFirstFailureStopsAllAndGivesItsCode) {
  Make(2);
  RunUntil(State::kRunning);
  const auto actions = Exit(2, 7);
  for (uint32_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(Sends(actions, i, Kind::kStop)) << i;
    EXPECT_EQ(SentTo(i, actions)[0].stop().grace_ms(), 5000u);
  }
  for (uint32_t rank : {0, 1, 3}) Exit(rank, 0, SIGTERM, true);
  EndAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kWorker);
  EXPECT_EQ(verdict().exit_code, 7);
  EXPECT_EQ(verdict().rank, Rank(2));
  EXPECT_EQ(verdict().message, "");
  EXPECT_EQ(core_->secondary_deaths(), 3u);
}

// D2, and the codes of section "exit codes": the worker's own, or 128 and the signal.
TEST_F(RunningTest, ExitCodesTellTheTruth) {
  struct Case {
    v1::WorkerExit exit;
    int code;
  };
  auto aborted = [](int code) {
    v1::WorkerExit exit = ExitOf(0, 0, SIGKILL, true);
    exit.set_aborted(true);
    exit.set_abort_code(code);
    return exit;
  };
  const std::vector<Case> cases = {
      {ExitOf(0, 1), 1},
      {ExitOf(0, 125), 125},
      {ExitOf(0, 126), 126},
      {ExitOf(0, 127), 127},
      {ExitOf(0, 255), 255},
      {ExitOf(0, 0, SIGSEGV), 139},
      {ExitOf(0, 0, SIGKILL), 137},
      {aborted(5), 5},
      {aborted(0x105), 5},
      {aborted(0), 1},
      {aborted(256), 1},
      {ExitOf(0, 256), 1},
      {ExitOf(0, 202), 202},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.exit.ShortDebugString());
    finished_ = false;
    all_.clear();
    Make(1);
    RunUntil(State::kRunning);
    Exit(c.exit);
    EndAll();
    ASSERT_TRUE(finished_);
    EXPECT_EQ(verdict().kind, Verdict::Kind::kWorker);
    EXPECT_EQ(verdict().exit_code, c.code);
  }
}

TEST_F(RunningTest, TheEarliestFailureWinsEvenWhenItsReportCameLater) {
  Make(2);
  RunUntil(State::kRunning);
  const int64_t wall = kEpoch + (now_ - start_).count();
  v1::WorkerExit victim = ExitOf(0, 1);
  victim.set_unix_nanos(wall + 2'000'000);
  v1::WorkerExit cause = ExitOf(2, 9);
  cause.set_unix_nanos(wall + 1'000'000);
  now_ += milliseconds(10);
  Exit(victim);
  now_ += milliseconds(50);
  Exit(cause);
  Exit(1, 0, SIGTERM, true);
  EndAll();
  EXPECT_EQ(verdict().rank, Rank(2));
  EXPECT_EQ(verdict().exit_code, 9);
  EXPECT_EQ(core_->secondary_deaths(), 2u);
}

// C10: clocks an hour apart say nothing about who was first.
TEST_F(RunningTest, FailuresAreOrderedAcrossClocksThatDisagree) {
  Make(2);
  constexpr int64_t kHour = 3'600'000'000'000;
  for (uint32_t i = 0; i < 2; ++i) {
    Feed(NodeConnected{NodeId(i)});
    v1::Inventory inventory = Inventory(i);
    if (i == 1) inventory.set_clock_unix_nanos(inventory.clock_unix_nanos() - kHour);
    Welcome(i, inventory);
  }
  ProbeAll();
  PortsHeld(0);
  Started(0);
  Started(1);
  const int64_t wall = kEpoch + (now_ - start_).count();
  v1::WorkerExit cause = ExitOf(0, 4);
  cause.set_unix_nanos(wall + 1'000'000);
  v1::WorkerExit victim = ExitOf(2, 1);
  victim.set_unix_nanos(wall - kHour + 5'000'000);
  now_ += milliseconds(20);
  Exit(victim);
  Exit(cause);
  EndAll();
  EXPECT_EQ(verdict().rank, Rank(0));
  EXPECT_EQ(verdict().exit_code, 4);
}

TEST_F(RunningTest, AfterTheSettlingTimeTheVerdictStands) {
  Make(2);
  RunUntil(State::kRunning);
  now_ += milliseconds(10);
  Exit(0, 1);
  now_ += milliseconds(150);
  v1::WorkerExit earlier = ExitOf(2, 9);
  earlier.set_unix_nanos(kEpoch);
  Exit(earlier);
  EndAll();
  EXPECT_EQ(verdict().rank, Rank(0));
}

TEST_F(RunningTest, WhoWasToldToStopIsNeverTheFirst) {
  Make(2);
  RunUntil(State::kRunning);
  now_ += milliseconds(10);
  Exit(0, 1);
  v1::WorkerExit told = ExitOf(2, 0, SIGTERM, true);
  told.set_unix_nanos(kEpoch);
  Exit(told);
  EndAll();
  EXPECT_EQ(verdict().rank, Rank(0));
}

// D2. MPICH waits to be killed after an abort, while its neighbours fail and exit by themselves.
TEST_F(RunningTest, AnAbortIsTheFirstWhenItWasAskedForBefore) {
  struct Case {
    int asked_ms;   // before the neighbour's exit
    int report_ms;  // after the neighbour's report
    bool is_first;
  };
  for (const Case& c :
       {Case{50, 1, true}, Case{1, 250, true}, Case{-1, 1, false}, Case{50, 350, false}}) {
    SCOPED_TRACE(c.asked_ms);
    SCOPED_TRACE(c.report_ms);
    finished_ = false;
    all_.clear();
    Make(2);
    RunUntil(State::kRunning);
    now_ += milliseconds(500);
    const int64_t wall = kEpoch + (now_ - start_).count();
    v1::WorkerExit neighbour = ExitOf(0, 15);
    neighbour.set_unix_nanos(wall);
    Exit(neighbour);
    now_ += milliseconds(c.report_ms);
    v1::WorkerExit aborted = ExitOf(2, 0, SIGTERM, true);
    aborted.set_aborted(true);
    aborted.set_abort_code(42);
    aborted.set_abort_unix_nanos(wall - int64_t{c.asked_ms} * 1'000'000);
    aborted.set_unix_nanos(kEpoch + (now_ - start_).count());
    Exit(aborted);
    EndAll();
    EXPECT_EQ(verdict().rank, Rank(c.is_first ? 2 : 0));
    EXPECT_EQ(verdict().exit_code, c.is_first ? 42 : 15);
  }
}

// Who is killed pulls others with it, and some of them abort.
TEST_F(RunningTest, AnAbortAfterAKillIsNotTheFirst) {
  Make(2);
  RunUntil(State::kRunning);
  now_ += milliseconds(500);
  const int64_t wall = kEpoch + (now_ - start_).count();
  v1::WorkerExit aborted = ExitOf(0, 1);
  aborted.set_aborted(true);
  aborted.set_abort_code(1);
  aborted.set_abort_unix_nanos(wall);
  aborted.set_unix_nanos(wall + 1'000'000);
  Exit(aborted);
  v1::WorkerExit killed = ExitOf(2, 0, SIGKILL);
  killed.set_unix_nanos(wall + 2'000'000);
  Exit(killed);
  EndAll();
  EXPECT_EQ(verdict().rank, Rank(2));
  EXPECT_EQ(verdict().exit_code, 137);
}

// G2, G3: the agent acted on its own lease.
TEST_F(RunningTest, WorkersEndedByTheirAgentAreItsNodesLoss) {
  Make(2);
  RunUntil(State::kRunning);
  Exit(2, 0, SIGTERM, true);
  EndAll();
  EXPECT_EQ(verdict().kind, Verdict::Kind::kNode);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message, HasSubstr("node1"));
}

// C6: a rank of another node, one that ended already, one that is none.
TEST_F(RunningTest, AnExitOfAForeignRankIsAFault) {
  for (uint32_t rank : {2u, 77u}) {
    finished_ = false;
    all_.clear();
    Make(2);
    RunUntil(State::kRunning);
    v1::SessionEvent event;
    *event.mutable_exit() = ExitOf(rank, 0);
    Message(0, event);
    EndAll();
    EXPECT_EQ(verdict().exit_code, 203);
  }
  finished_ = false;
  all_.clear();
  Make(2);
  RunUntil(State::kRunning);
  Exit(0, 0);
  Exit(0, 0);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 203);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kNode);
}

TEST_F(RunningTest, FinishedWithLivingWorkersIsAFault) {
  Make(2);
  RunUntil(State::kRunning);
  Finished(1);
  EXPECT_EQ(core_->state(), State::kStopping);
}

TEST_F(RunningTest, ALostConnectionIsALostNodeAndTheRestIsStopped) {
  Make(2);
  RunUntil(State::kRunning);
  const auto actions = Closed(1, "Connection reset by peer");
  EXPECT_TRUE(Sends(actions, 0, Kind::kStop));
  EXPECT_FALSE(Sends(actions, 1, Kind::kStop));
  Finished(0);
  Drained(0);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message,
              AllOf(HasSubstr("node1"), HasSubstr("Connection reset by peer"), HasSubstr("20 s")));
}

// B16: a host in between is gone; some see it later than others.
TEST_F(RunningTest, NodesThatAreLostByTheSameCauseAreToldTogether) {
  Make(4);
  RunUntil(State::kRunning);
  Closed(2, "it leads through gate");
  ASSERT_EQ(core_->state(), State::kStopping);
  Pass(seconds(1), {0, 1, 3});
  Closed(3, "it leads through gate");
  Closed(1, "its own");
  Finished(0);
  Drained(0);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("node2, node3: "), Not(HasSubstr("node1"))));
  EXPECT_THAT(core_->warnings(), ElementsAre(AllOf(HasSubstr("node1"), HasSubstr("its own"))));
}

// G1: silence is noticed when the lease is over, not later.
TEST_F(RunningTest, ASilentNodeIsLostAfterTheLease) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  Pass(milliseconds(14999), {0});
  EXPECT_EQ(core_->state(), State::kRunning);
  const size_t before = all_.size();
  Pass(milliseconds(1), {0});
  ASSERT_EQ(core_->state(), State::kStopping);
  const std::vector<Action> fresh(all_.begin() + before, all_.end());
  EXPECT_TRUE(Disconnects(fresh, 1));
  EXPECT_TRUE(Sends(fresh, 0, Kind::kStop));
  Finished(0);
  Drained(0);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("node1"), HasSubstr("15 s")));
}

// C11: first a word, and another one when it was a false alarm.
TEST_F(RunningTest, ASilentNodeIsSuspectFirst) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  Pass(milliseconds(5999), {0});
  EXPECT_FALSE(core_->nodes()[1].suspect);
  Pass(milliseconds(1), {0});
  EXPECT_TRUE(core_->nodes()[1].suspect);
  EXPECT_FALSE(core_->nodes()[0].suspect);
  EXPECT_THAT(core_->warnings(),
              ElementsAre(AllOf(HasSubstr("node1"), HasSubstr("6 s"), HasSubstr("15 s"))));
  Pass(seconds(4), {0});
  EXPECT_EQ(core_->warnings().size(), 1U);
  Beat(1);
  EXPECT_FALSE(core_->nodes()[1].suspect);
  EXPECT_THAT(core_->warnings().back(),
              AllOf(HasSubstr("node1"), HasSubstr("again"), HasSubstr("10 s")));
  Pass(milliseconds(6100), {0});
  EXPECT_TRUE(core_->nodes()[1].suspect);
  EXPECT_EQ(core_->state(), State::kRunning);
}

// While it is suspect another way to it is looked for, again and again.
TEST_F(RunningTest, ASuspectNodeIsDialedAnew) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  Pass(milliseconds(5999), {0});
  EXPECT_EQ(DialedAnew(), std::vector<uint32_t>());
  Pass(milliseconds(1), {0});
  EXPECT_EQ(DialedAnew(), std::vector<uint32_t>({1}));
  Pass(milliseconds(3000), {0});
  EXPECT_EQ(DialedAnew(), std::vector<uint32_t>({1, 1, 1}));
  Beat(1);
  Pass(milliseconds(5999), {0});
  EXPECT_EQ(DialedAnew().size(), 3U);
  Pass(milliseconds(1), {0});
  EXPECT_EQ(DialedAnew().size(), 4U);
}

// Its neighbours' connections break when it ends its workers, before we give it up.
TEST_F(RunningTest, ANodeThatFellSilentBeforeAFailureIsItsCause) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  Pass(milliseconds(14500), {0});
  Exit(0, 3);
  ASSERT_EQ(core_->state(), State::kStopping);
  Exit(1, 0, 15);
  Finished(0);
  Drained(0);
  Pass(seconds(1), {});
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kNode);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message,
              AllOf(HasSubstr("node1"), HasSubstr("rank 0 on node0"), HasSubstr("exit code 3")));
}

// The other way round the failure counts.
TEST_F(RunningTest, ANodeThatFallsSilentAfterAFailureIsNotItsCause) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  Pass(seconds(1));
  Beat(1);
  Exit(0, 3);
  Exit(1, 0, 15);
  Finished(0);
  Drained(0);
  Pass(seconds(16), {});
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 3);
}

// C11, K6: our own pause is nobody's silence.
TEST_F(RunningTest, OurOwnPauseLosesNobody) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  Pass(seconds(5), {0, 1});
  now_ += seconds(60);
  Feed(Tick{});
  EXPECT_EQ(core_->state(), State::kRunning);
  Pass(seconds(14), {0});
  EXPECT_EQ(core_->state(), State::kRunning);
  Pass(seconds(2), {0});
  EXPECT_EQ(core_->state(), State::kStopping);
}

TEST_F(RunningTest, OutputThatIsLostWithItsNodeIsTold) {
  Make(2);
  RunUntil(State::kRunning);
  for (uint32_t rank = 0; rank < 4; ++rank) Exit(rank, 0);
  Finished(0);
  Drained(0);
  Finished(1);
  Closed(1, "cut");
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message, HasSubstr("not all of their output"));
}

// E4: its agent came back and could not take the job over.
TEST_F(RunningTest, AnAgentWithoutTheJobIsAShepherdLost) {
  Make(2);
  RunUntil(State::kRunning);
  Feed(NodeClosed{NodeId(1), absl::NotFoundError("the workers have been killed")});
  EndAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 203);
  EXPECT_EQ(verdict().message, "node1: the workers have been killed");
}

// E12
TEST_F(RunningTest, AMachineThatWasStartedAnewIsANodeLost) {
  Make(2);
  RunUntil(State::kRunning);
  Feed(NodeClosed{NodeId(1), absl::NotFoundError("the machine was started anew"),
                  /*unknown_host=*/false, /*not_authorised=*/false, /*started_anew=*/true});
  EndAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_EQ(verdict().message, "node1: the machine was started anew");
}

TEST_F(RunningTest, FailuresOfNodesHaveTheirCodes) {
  struct Case {
    v1::NodeFailure::Kind kind;
    int given;
    int code;
  };
  for (const Case& c : {Case{v1::NodeFailure::KIND_SHEPHERD_LOST, 0, 203},
                        {v1::NodeFailure::KIND_STATE, 0, 207},
                        {v1::NodeFailure::KIND_CLEANUP, 0, 204},
                        {v1::NodeFailure::KIND_RESOURCES, 0, 200},
                        {v1::NodeFailure::KIND_SPAWN, 0, 126},
                        {v1::NodeFailure::KIND_SPAWN, 127, 127},
                        {v1::NodeFailure::KIND_STATE, 4000, 207}}) {
    finished_ = false;
    all_.clear();
    Make(2);
    RunUntil(State::kRunning);
    Failure(1, c.kind, c.given, "why");
    EndAll();
    ASSERT_TRUE(finished_);
    EXPECT_EQ(verdict().exit_code, c.code);
    EXPECT_EQ(verdict().message, "node1: why");
  }
}

// D3
TEST_F(RunningTest, ARankThatEndsEarlyIsWarnedOfOnce) {
  options_.exit_timeout = seconds(30);
  Make(2);
  RunUntil(State::kRunning);
  Exit(3, 0);
  Pass(seconds(29), {0, 1});
  EXPECT_THAT(Warnings(), IsEmpty());
  Pass(seconds(300), {0, 1});
  EXPECT_THAT(Warnings(),
              testing::ElementsAre(AllOf(HasSubstr("rank 3 on node1"), HasSubstr("3 of 4 ranks"))));
  EXPECT_EQ(core_->state(), State::kRunning);
}

// D3: the others wait for it in a fence.
TEST_F(RunningTest, AFenceThatWaitsForAnEndedRankEndsTheJob) {
  options_.exit_timeout = seconds(30);
  Make(2);
  RunUntil(State::kRunning);
  Fence(0, 0);
  Pass(seconds(100), {0, 1});  // a slow rank is no fault
  EXPECT_EQ(core_->state(), State::kRunning);
  Exit(3, 0);
  Pass(seconds(29), {0, 1});
  EXPECT_EQ(core_->state(), State::kRunning);
  Pass(seconds(1), {0, 1});
  ASSERT_EQ(core_->state(), State::kStopping);
  EndAll();
  EXPECT_EQ(verdict().kind, Verdict::Kind::kStalled);
  EXPECT_EQ(verdict().exit_code, 205);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("rank 3 on node1"), HasSubstr("fence 0")));
}

// D3: the user asked for it.
TEST_F(RunningTest, AnExitTimeoutThatWasGivenEndsTheJobWithoutAnyFence) {
  options_.exit_timeout = seconds(2);
  options_.exit_timeout_ends_job = true;
  Make(2);
  RunUntil(State::kRunning);
  Exit(1, 0);
  Pass(seconds(2), {0, 1});
  ASSERT_EQ(core_->state(), State::kStopping);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 205);
  EXPECT_THAT(verdict().message, HasSubstr("rank 1 on node0"));
}

TEST_F(RunningTest, ZeroExitTimeoutIsPatient) {
  options_.exit_timeout = Duration::zero();
  Make(2);
  RunUntil(State::kRunning);
  Fence(0, 0);
  Exit(3, 0);
  Pass(seconds(1000), {0, 1});
  EXPECT_EQ(core_->state(), State::kRunning);
  EXPECT_THAT(Warnings(), IsEmpty());
}

TEST_F(RunningTest, AFenceOutOfSequenceIsItsNodesFault) {
  Make(2);
  RunUntil(State::kRunning);
  Fence(1, 3);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 203);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("node1"), HasSubstr("fence 3")));
}

// K5
TEST_F(RunningTest, UserSignalsReachEveryNode) {
  Make(2);
  EXPECT_THAT(Signal(SIGUSR1), testing::SizeIs(1));  // a warning: no worker runs
  RunUntil(State::kRunning);
  const auto actions = Signal(SIGUSR2);
  for (uint32_t i = 0; i < 2; ++i) {
    ASSERT_EQ(SentTo(i, actions).size(), 1u);
    EXPECT_EQ(SentTo(i, actions)[0].signal().signal(), SIGUSR2);
  }
  EXPECT_EQ(core_->state(), State::kRunning);
}

TEST_F(RunningTest, TextFromNodesIsEscaped) {
  Make(1);
  RunUntil(State::kRunning);
  v1::SessionEvent event;
  event.mutable_warning()->set_message("a\x1b[2J");
  Message(0, event);
  event.mutable_warning()->set_message("b\\x1b\nc");  // escaped where it came from
  Message(0, event);
  Pass(seconds(1), {0});
  EXPECT_THAT(Warnings(), testing::ElementsAre("node0: a\\x1b[2J", "node0: b\\x1b\n      c"));
}

TEST_F(RunningTest, AKilledRankIsTheCauseOfANeighbourThatExitedJustBefore) {
  Make(2);
  RunUntil(State::kRunning);
  Exit(3, 3);  // lost its connection to rank 2, and was reaped first
  now_ += std::chrono::milliseconds(2);
  Exit(2, 0, 9);
  now_ += std::chrono::milliseconds(2);
  Exit(0, 0, 6);  // an abort is a consequence, too
  EndAll();
  EXPECT_EQ(verdict().rank, Rank(2));
  EXPECT_EQ(verdict().exit_code, 137);
}

TEST_F(RunningTest, WhatSeveralNodesWarnOfIsOneLine) {
  Make(3);
  RunUntil(State::kRunning);
  v1::SessionEvent event;
  event.mutable_warning()->set_message("no cgroup");
  for (uint32_t node : {2u, 0u, 0u}) Message(node, event);
  event.mutable_warning()->set_message("something else");
  Message(1, event);
  EXPECT_THAT(Warnings(), IsEmpty());
  Pass(seconds(1), {0, 1, 2});
  EXPECT_THAT(Warnings(), testing::ElementsAre("node2, node0: no cgroup", "node1: something else"));
}

TEST_F(RunningTest, WarningsOfTheLastMomentAreTold) {
  Make(1);
  RunUntil(State::kRunning);
  Exit(0, 0);
  Exit(1, 0);
  v1::SessionEvent event;
  event.mutable_warning()->set_message("late");
  Message(0, event);
  EndAll();
  EXPECT_TRUE(finished_);
  EXPECT_THAT(Warnings(), testing::ElementsAre("node0: late"));
}

v1::SessionEvent InsideCollective(uint32_t rank, uint64_t number, bool inside) {
  v1::SessionEvent event;
  v1::RankProgress& progress = *event.mutable_progress()->add_ranks();
  progress.set_rank(rank);
  progress.set_joined(true);
  progress.set_operations(number);
  progress.set_number(number);
  progress.set_inside(inside);
  return event;
}

// M1
TEST_F(RunningTest, ACollectiveThatDoesNotEndIsWarnedOfOnce) {
  Make(2);
  RunUntil(State::kRunning);
  for (int second = 0; second < 200; ++second) {
    Message(0, InsideCollective(0, 7, true));
    Message(1, InsideCollective(3, 6, false));
    if (second == 59) {
      EXPECT_THAT(Warnings(), IsEmpty());
    }
    Pass(seconds(1), {0, 1});
  }
  EXPECT_THAT(Warnings(),
              testing::ElementsAre(AllOf(HasSubstr("rank 0 on node0 has been inside collective 7"),
                                         HasSubstr("waits for rank 3 on node1 (at 6)"),
                                         HasSubstr("--collective-timeout"))));
  EXPECT_EQ(core_->state(), State::kRunning);
}

TEST_F(RunningTest, TheCollectiveTimeoutEndsTheJob) {
  options_.collective_timeout = seconds(20);
  Make(2);
  RunUntil(State::kRunning);
  for (int second = 0; second < 20; ++second) {
    Message(1, InsideCollective(3, 6, false));
    Message(0, InsideCollective(0, 7, true));
    EXPECT_EQ(core_->state(), State::kRunning) << second;
    Pass(seconds(1), {0, 1});
  }
  Message(0, InsideCollective(0, 7, true));
  EXPECT_EQ(core_->state(), State::kStopping);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 205);
  EXPECT_THAT(verdict().message, HasSubstr("waits for rank 3 on node1"));
}

TEST_F(RunningTest, ProgressOfAnotherNodesRankIsAFault) {
  Make(2);
  RunUntil(State::kRunning);
  Message(0, InsideCollective(3, 6, true));
  EXPECT_EQ(core_->state(), State::kStopping);
}

}  // namespace
}  // namespace dtrain::job
