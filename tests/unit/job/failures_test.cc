// SPDX-License-Identifier: Apache-2.0
// Which failure of a rank was the first, and what it makes the job exit with.
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using testing::HasSubstr;

class FailuresTest : public JobFixture {};

// D1
TEST_F(FailuresTest, TheFirstFailureStopsAllAndGivesItsCode) {
  Make(2);
  RunUntil(State::kRunning);
  const auto actions = Exit(2, 7);
  for (uint32_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(Sends(actions, i, v1::JobRequest::kStop)) << i;
    EXPECT_EQ(JobSentTo(i, actions)[0].stop().grace_ms(), 5000u);
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
TEST_F(FailuresTest, ExitCodesTellTheTruth) {
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

TEST_F(FailuresTest, TheEarliestFailureWinsEvenWhenItsReportCameLater) {
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
TEST_F(FailuresTest, FailuresAreOrderedAcrossClocksThatDisagree) {
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
TEST_F(FailuresTest, TheFirstFailureIsThatOfAClockThatIsSet) {
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

TEST_F(FailuresTest, AReportMayComeLate) {
  Make(2);
  RunUntil(State::kRunning);
  now_ += milliseconds(10);
  Exit(0, 1);
  now_ += milliseconds(150);
  v1::WorkerExit earlier = ExitOf(2, 9);
  earlier.set_unix_nanos(kEpoch);
  Exit(earlier);
  EndAll();
  EXPECT_EQ(verdict().rank, Rank(2));
}

TEST_F(FailuresTest, WhoWasToldToStopIsNeverTheFirst) {
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
TEST_F(FailuresTest, AnAbortIsTheFirstWhenItWasAskedForBefore) {
  struct Case {
    int asked_ms;   // before the neighbour's exit
    int report_ms;  // after the neighbour's report
    bool is_first;
  };
  for (const Case& c :
       {Case{50, 1, true}, Case{1, 250, true}, Case{-1, 1, false}, Case{50, 350, true}}) {
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
TEST_F(FailuresTest, AnAbortAfterAKillIsNotTheFirst) {
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
TEST_F(FailuresTest, WorkersEndedByTheirAgentAreItsNodesLoss) {
  Make(2);
  RunUntil(State::kRunning);
  Exit(2, 0, SIGTERM, true);
  EndAll();
  EXPECT_EQ(verdict().kind, Verdict::Kind::kNode);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message, HasSubstr("node1"));
}

// C6: a rank of another node, one that ended already, one that is none.
TEST_F(FailuresTest, AnExitOfAForeignRankIsAFault) {
  for (uint32_t rank : {2u, 77u}) {
    finished_ = false;
    all_.clear();
    Make(2);
    RunUntil(State::kRunning);
    v1::JobEvent event;
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

TEST_F(FailuresTest, FinishedWithLivingWorkersIsAFault) {
  Make(2);
  RunUntil(State::kRunning);
  Over(1);
  EXPECT_EQ(core_->state(), State::kStopping);
}

TEST_F(FailuresTest, AKilledRankIsTheCauseOfANeighbourThatExitedJustBefore) {
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

}  // namespace
}  // namespace dtrain::job
