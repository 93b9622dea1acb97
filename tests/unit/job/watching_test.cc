// SPDX-License-Identifier: Apache-2.0
// Ranks that do not run, and collectives that do not end.
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class HaltedTest : public JobFixture {
 protected:
  void Run() {
    Make(2);
    RunUntil(State::kHolding);
    PortsHeld(0);
    for (uint32_t node : {0, 1}) {
      v1::JobEvent event;
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
    v1::JobEvent event;
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

class WatchingTest : public JobFixture {};

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

// The rest of it is what an attempt has.
TEST_F(HaltedTest, TheTimeLimitIsToldAsItWasAskedFor) {
  options_.time_limit = milliseconds(19730);
  options_.told_time_limit = seconds(20);
  Run();
  Pass(seconds(20), {0, 1});
  EndAll();
  EXPECT_EQ(verdict().message, "the time limit of 20 s was reached; 4 of 4 ranks still ran");
}

TEST_F(HaltedTest, OfAnElasticJobRanksHaveItsNumbers) {
  options_.time_limit = seconds(20);
  options_.elastic.emplace().set_first_number(40);
  Run();
  Pass(seconds(5), {0, 1});
  Look('T');
  Pass(seconds(15), {0, 1});
  EXPECT_THAT(verdict().message, HasSubstr("rank 43 on node1 (pid 123): stopped (T)"));
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
  v1::JobEvent event;
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

v1::JobEvent InsideCollective(uint32_t rank, uint64_t number, bool inside) {
  v1::JobEvent event;
  v1::RankProgress& progress = *event.mutable_progress()->add_ranks();
  progress.set_rank(rank);
  progress.set_joined(true);
  progress.set_operations(number);
  progress.set_number(number);
  progress.set_inside(inside);
  return event;
}

// M1
TEST_F(WatchingTest, ACollectiveThatDoesNotEndIsWarnedOfOnce) {
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

TEST_F(WatchingTest, TheCollectiveTimeoutEndsTheJob) {
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

TEST_F(WatchingTest, WhatRanksHaveLastSaidIsReported) {
  options_.collective_warning = seconds(10);
  options_.collective_timeout = seconds(20);
  options_.unfinished_line = [](uint32_t rank) {
    return rank == 1 ? "" : rank == 3 ? "(Pdb)" : "\t9%";
  };
  Make(2);
  RunUntil(State::kRunning);
  for (int second = 0; second < 21; ++second) {
    Message(1, InsideCollective(3, 6, false));
    Message(0, InsideCollective(0, 7, true));
    Pass(seconds(1), {0, 1});
  }
  EndAll();
  // First those for whom the others may wait.
  const std::string said =
      R"~(; rank 2 on node1 last wrote "\t9%", rank 3 on node1 last wrote "(Pdb)", )~"
      R"~(rank 0 on node0 last wrote "\t9%")~";
  EXPECT_THAT(Warnings(), ElementsAre(HasSubstr(said)));
  EXPECT_THAT(verdict().message, testing::EndsWith(said));
}

TEST_F(WatchingTest, ProgressOfAnotherNodesRankIsAFault) {
  Make(2);
  RunUntil(State::kRunning);
  Message(0, InsideCollective(3, 6, true));
  EXPECT_EQ(core_->state(), State::kStopping);
}

}  // namespace
}  // namespace dtrain::job
