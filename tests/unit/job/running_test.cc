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
using testing::StartsWith;
using Kind = v1::SessionRequest::KindCase;

class RunningTest : public JobFixture {
 protected:
  // The node that is left, after the other was lost: the job is over then.
  void EndNode0() {
    Exit(0, 0, SIGTERM, /*told=*/true);
    Exit(1, 0, SIGTERM, /*told=*/true);
    Finished(0);
    Drained(0);
    Pass(seconds(20));
    ASSERT_TRUE(finished_);
  }
};

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

// C17: a node's clock is set while the job runs, by an hour in one direction or the other, before
// or after its next beat.
TEST_F(RunningTest, TheFirstFailureIsThatOfAClockThatIsSet) {
  constexpr int64_t kHour = 3'600'000'000'000;
  for (const int64_t step : {kHour, -kHour}) {
    for (const bool beat : {false, true}) {
      SCOPED_TRACE(absl::StrCat(step, beat ? " after a beat" : ""));
      all_.clear();
      finished_ = false;
      Make(2);
      RunUntil(State::kRunning);
      auto beats = [&](int64_t ahead) {
        for (uint32_t node : {0, 1}) {
          v1::SessionEvent event;
          event.mutable_heartbeat()->set_unix_nanos(kEpoch + (now_ - start_).count() +
                                                    (node == 1 ? ahead : 0));
          Message(node, event);
        }
      };
      for (int i = 0; i < 10; ++i) {
        now_ += seconds(3);
        beats(0);
      }
      now_ += seconds(1);
      if (beat) beats(step);
      EXPECT_EQ(core_->nodes()[1].clock_ahead_nanos, beat ? step : 0);
      EXPECT_EQ(core_->nodes()[1].clock_ahead_at_start_nanos, 0);
      const int64_t wall = kEpoch + (now_ - start_).count();
      v1::WorkerExit cause = ExitOf(0, 4);
      cause.set_unix_nanos(wall + 1'000'000);
      v1::WorkerExit victim = ExitOf(2, 1);
      victim.set_unix_nanos(wall + step + 5'000'000);
      now_ += milliseconds(20);
      Exit(victim);
      Exit(cause);
      EXPECT_NEAR(static_cast<double>(core_->ranks()[2].ended_unix_nanos - wall), 5e6, 20e6);
      EndAll();
      EXPECT_EQ(verdict().rank, Rank(0));
    }
  }
}

// ---- 22: ranks that do not run ----

class HaltedTest : public JobFixture {
 protected:
  void Run() {
    Make(2);
    RunUntil(State::kHolding);
    PortsHeld(0);
    for (uint32_t node : {0, 1}) {
      v1::SessionEvent event;
      for (uint32_t i = 0; i < 2; ++i) {
        v1::WorkerStarted& worker = *event.mutable_started()->add_workers();
        worker.set_rank(2 * node + i);
        worker.set_pid(120 + 2 * node + i);
      }
      Message(node, event);
    }
    ASSERT_EQ(core_->state(), State::kRunning);
  }
  void Look(char state) {
    v1::SessionEvent event;
    v1::RankProgress& progress = *event.mutable_progress()->add_ranks();
    progress.set_rank(3);
    progress.set_process_state(static_cast<uint32_t>(state));
    if (state != 0 && since_ == 0) since_ = kEpoch + (now_ - start_).count();
    if (state == 0) since_ = 0;
    progress.set_state_since_unix_nanos(since_);
    Message(1, event);
  }
  int64_t since_ = 0;
};

// kEpoch is 22:13:20 UTC.
TEST_F(HaltedTest, TheTimeLimitTellsWhoDoesNotRunAndSinceWhen) {
  options_.time_limit = seconds(20);
  Run();
  Pass(seconds(5), {0, 1});
  Look('T');
  Pass(seconds(15), {0, 1});
  EndAll();
  EXPECT_EQ(verdict().exit_code, 209);
  EXPECT_EQ(verdict().message,
            "the time limit of 20 s was reached; 4 of 4 ranks still ran; rank 3 on node1 (pid "
            "123): stopped (T) since 22:13:25");
}

TEST_F(HaltedTest, ACancelledJobTellsWhichRanksAreHalted) {
  Run();
  Look('D');
  Signal(SIGINT);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 130);
  EXPECT_EQ(verdict().message,
            "ended by SIGINT; rank 3 on node1 (pid 123): waiting in the kernel (D) since 22:13:20");
}

TEST_F(HaltedTest, WhatRunsAgainIsNotTold) {
  options_.time_limit = seconds(20);
  Run();
  Look('D');
  Pass(seconds(5), {0, 1});
  Look(0);
  Exit(0, 0);
  Pass(seconds(15), {0, 1});
  EndAll();
  EXPECT_EQ(verdict().message, "the time limit of 20 s was reached; 3 of 4 ranks still ran");
}

TEST_F(HaltedTest, AStallOfAMinuteIsSaidOnceWhileTheJobRuns) {
  Run();
  for (int i = 0; i < 180; ++i) {
    Look(i == 100 ? '\0' : 't');
    Pass(seconds(1), {0, 1});
    EXPECT_EQ(Warnings().size(), i < 60 ? 0u : i < 161 ? 1u : 2u) << i;
  }
  EXPECT_THAT(Warnings(),
              ElementsAre("rank 3 on node1 (pid 123): stopped by a debugger (t) since 22:13:20",
                          "rank 3 on node1 (pid 123): stopped by a debugger (t) since 22:15:01"));
  EXPECT_EQ(core_->state(), State::kRunning);
}

TEST_F(HaltedTest, TheTimeLimitTellsWhatTheOthersWaitIn) {
  options_.time_limit = seconds(20);
  Run();
  v1::SessionEvent event;
  for (uint32_t rank : {0, 1}) {
    v1::RankProgress& progress = *event.mutable_progress()->add_ranks();
    progress.set_rank(rank);
    progress.set_joined(true);
    progress.set_inside(true);
    progress.set_number(7);
    progress.set_operations(7);
    progress.set_kind(1);
  }
  Message(0, event);
  Look('T');
  Pass(seconds(20), {0, 1});
  EXPECT_THAT(verdict().message,
              HasSubstr("(pid 123): stopped (T) since 22:13:20; rank 0 on node0 has been "
                        "inside collective 7 (allreduce"));
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
  Closed(2, "it is reached through gate");
  ASSERT_EQ(core_->state(), State::kStopping);
  Pass(seconds(1), {0, 1, 3});
  Closed(3, "it is reached through gate");
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

// C11, K6: our own pause is nobody's silence. Before and after it each node has its lease.
TEST_F(RunningTest, OurOwnPauseLosesNobody) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  Pass(seconds(5), {0, 1});  // both were heard two seconds ago
  now_ += seconds(60);
  Feed(Tick{});
  EXPECT_EQ(core_->state(), State::kRunning);
  Pass(seconds(10), {0});
  EXPECT_EQ(core_->state(), State::kRunning);
  Pass(seconds(3), {0});
  EXPECT_EQ(core_->state(), State::kStopping);
}

// A process that gets the CPU for a moment now and then. Only what it has of its time counts, so
// that a node that is gone is lost after a while all the same.
TEST_F(RunningTest, ManyShortPausesDoNotCountEither) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(core_->state(), State::kRunning) << i;
    now_ = core_->NextDeadline() + seconds(4);
    Feed(Tick{});
  }
  EXPECT_GT(now_ - start_, seconds(16));
  for (int i = 0; i < 20 && core_->state() == State::kRunning; ++i) {
    now_ = core_->NextDeadline() + seconds(4);
    Feed(Tick{});
  }
  EXPECT_EQ(verdict().exit_code, 202);
}

// A busy machine's lateness is no pause.
TEST_F(RunningTest, ALittleLatenessCounts) {
  options_.lease = seconds(15);
  Make(1);
  RunUntil(State::kRunning);
  while (core_->state() == State::kRunning && now_ < start_ + seconds(30)) {
    now_ = core_->NextDeadline() + milliseconds(500);
    Feed(Tick{});
  }
  EXPECT_LE(now_ - start_, seconds(17));
}

// K11: nodes ended the job as we were stopped for longer than the lease. That is one line.
TEST_F(RunningTest, APauseBeyondTheLeaseIsToldAsOurs) {
  options_.lease = seconds(15);
  Make(3);
  RunUntil(State::kRunning);
  Pass(seconds(3), {0, 1, 2});
  now_ += seconds(40);
  Exit(0, 0, SIGTERM, /*told=*/true);
  EXPECT_EQ(core_->state(), State::kStopping);
  Exit(2, 0, SIGTERM, /*told=*/true);
  const absl::Status own_word = absl::AbortedError("the launcher was not heard from");
  Closed(0, "reset");
  Pass(seconds(1), {1, 2});
  Feed(NodeClosed{NodeId(1), own_word});
  Feed(NodeClosed{NodeId(2), own_word});
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message, StartsWith("this launcher did not run for 37 s "));
  EXPECT_THAT(verdict().message, Not(HasSubstr("\n")));
  EXPECT_THAT(Warnings(), IsEmpty());
}

// That we stood still, too, does not take the blame from a node that does not say so.
TEST_F(RunningTest, ANodeThatIsLostAfterAPauseIsNamedWithThePause) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  Pass(seconds(3), {0, 1});
  now_ += seconds(12);
  Beat(0);
  Pass(seconds(16), {0});
  EndNode0();
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message,
              StartsWith("node1: the connection to its agent is lost: no message "));
  EXPECT_THAT(verdict().message, HasSubstr("; this launcher had not run for 9"));
}

TEST_F(RunningTest, AMachineThatWasStartedAnewDuringAPauseIsNamed) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  now_ += seconds(40);
  NodeClosed anew{NodeId(1), absl::NotFoundError("the machine was started anew")};
  anew.started_anew = true;
  Feed(anew);
  EndNode0();
  EXPECT_THAT(verdict().message, StartsWith("node1: the machine was started anew"));
}

TEST_F(RunningTest, ANodeThatDiedDuringAPauseHasALine) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  Pass(seconds(3), {0, 1});
  now_ += seconds(40);
  Exit(0, 0, SIGTERM, /*told=*/true);
  Exit(1, 0, SIGTERM, /*told=*/true);
  Finished(0);
  Drained(0);
  Pass(seconds(20));
  EXPECT_THAT(verdict().message, StartsWith("this launcher did not run for 37 s "));
  EXPECT_THAT(Warnings(),
              testing::Contains(StartsWith("node1: the connection to its agent is lost: "
                                           "no message from it for 15")));
}

// Our own node's ranks fail when those of the others are gone, and may be heard of first.
TEST_F(RunningTest, ARankThatFailsByOurPauseIsNotItsCause) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  Pass(seconds(3), {0, 1});
  const int64_t wall = kEpoch + (now_ - start_).count();
  now_ += seconds(40);
  v1::WorkerExit effect = ExitOf(0, 1);
  effect.set_unix_nanos(wall + 16'000'000'000);
  v1::WorkerExit cause = ExitOf(2, 0, SIGTERM, /*told=*/true);
  cause.set_unix_nanos(wall + 15'000'000'000);
  Exit(effect);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kWorker);
  Exit(cause);
  EXPECT_THAT(verdict().message, StartsWith("this launcher did not run for "));
  EXPECT_EQ(verdict().exit_code, 202);
}

// A sleep of the machine, that its monotonic clock knows nothing of.
TEST_F(RunningTest, ASleepIsToldAsOurs) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  Pass(seconds(1), {0, 1});
  Feed(Slept{seconds(3600)});
  EXPECT_EQ(core_->state(), State::kRunning);
  Feed(NodeClosed{NodeId(1), absl::NotFoundError("this agent has no such job (any more)")});
  EXPECT_THAT(verdict().message, StartsWith("this launcher did not run for 3600 s "));
  EXPECT_EQ(verdict().exit_code, 202);
}

TEST_F(RunningTest, AShortPauseIsNoCause) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  Pass(seconds(3), {0, 1});
  now_ += seconds(8);
  Closed(1, "reset by peer");
  EndNode0();
  EXPECT_THAT(verdict().message, HasSubstr("node1: the connection to its agent is lost: reset"));
}

// 30: the agent on our own machine is watched by its process: its stream ends when it does.
TEST_F(RunningTest, TheAgentOfOurOwnMachineIsNotLostBySilence) {
  options_.lease = seconds(15);
  Make(2);
  Feed(NodeConnected{NodeId(0), /*same_machine=*/true});
  Feed(NodeConnected{NodeId(1)});
  EXPECT_TRUE(SentTo(0)[0].hello().same_machine());
  EXPECT_FALSE(SentTo(1)[0].hello().same_machine());
  Welcome(0);
  Welcome(1);
  ProbeAll();
  PortsHeld(0);
  Started(0);
  Started(1);
  Pass(seconds(120), {1});
  EXPECT_EQ(core_->state(), State::kRunning);
  EXPECT_THAT(Warnings(),
              testing::ElementsAre(HasSubstr("node0: no message from it for 6 s; its agent")));
  Closed(0, "killed");
  EXPECT_EQ(core_->state(), State::kStopping);
  EXPECT_EQ(verdict().exit_code, 202);
}

// Nobody's child: a resident agent, which a relay of ours leads to.
TEST_F(RunningTest, AResidentAgentOfOurOwnMachineHasALease) {
  options_.lease = seconds(15);
  Make(1);
  Feed(NodeConnected{NodeId(0), /*same_machine=*/true});
  v1::SessionEvent event;
  FillWelcome(Inventory(0), *event.mutable_welcome());
  event.mutable_welcome()->set_resumable(true);
  Message(0, event);
  PortsHeld(0);
  Started(0);
  ASSERT_EQ(core_->state(), State::kRunning);
  Pass(seconds(20), {});
  EXPECT_EQ(verdict().exit_code, 202);
}

// Pauses that are past are no excuse for a node that dies later.
TEST_F(RunningTest, PausesOfLongAgoAreForgotten) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  for (int i = 0; i < 50; ++i) {
    Pass(seconds(10), {0, 1});
    now_ = core_->NextDeadline() + seconds(2);
    for (uint32_t node : {0, 1}) Beat(node);
  }
  Closed(1, "reset");
  EndNode0();
  EXPECT_THAT(verdict().message, HasSubstr("node1: the connection to its agent is lost: reset"));
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
  Feed(NodeClosed{NodeId(1), absl::NotFoundError("the machine was rebooted"),
                  /*unknown_host=*/false, /*not_authorised=*/false, /*started_anew=*/true});
  EndAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_EQ(verdict().message, "node1: the machine was rebooted");
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

TEST_F(RunningTest, AWarningThatIsADetailSaysSo) {
  Make(2);
  RunUntil(State::kRunning);
  v1::SessionEvent event;
  event.mutable_warning()->set_message("no cgroup");
  event.mutable_warning()->set_detail(true);
  Message(0, event);
  event.mutable_warning()->set_message("disk nearly full");
  event.mutable_warning()->set_detail(false);
  Message(0, event);
  Pass(seconds(1), {0, 1});
  std::vector<std::string> details, others;
  for (const Action& action : all_) {
    const auto* warn = std::get_if<Warn>(&action);
    if (warn != nullptr) (warn->detail ? details : others).push_back(warn->text);
  }
  EXPECT_THAT(details, testing::ElementsAre("node0: no cgroup"));
  EXPECT_THAT(others, testing::ElementsAre("node0: disk nearly full"));
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
  EXPECT_THAT(Warnings(), testing::ElementsAre("node0, node2: no cgroup", "node1: something else"));
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
