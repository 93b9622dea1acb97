// SPDX-License-Identifier: Apache-2.0
// However a job ends: within bounds, once, and with the truth.
#include "common/base/exit_code.h"
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using Kind = v1::SessionRequest::KindCase;

class StoppingTest : public JobFixture {
 public:
  void Reset(State state) {
    now_ = start_;
    finished_ = false;
    all_.clear();
    Make(2);
    RunUntil(state);
    ASSERT_EQ(core_->state(), state);
  }
};

constexpr State kAllStates[] = {State::kConnecting, State::kProbing, State::kHolding,
                                State::kStarting,   State::kRunning, State::kStopping};

// K1, K2, K3, K8: a cancel in every state ends the job; with agents that answer, at once.
TEST_F(StoppingTest, ACancelEndsTheJobInEveryState) {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    for (State state : kAllStates) {
      SCOPED_TRACE(absl::StrCat(StateName(state), " ", signal));
      Reset(state);
      Signal(signal);
      if (state >= State::kStarting) {
        EXPECT_FALSE(finished_);
        EXPECT_TRUE(Sends(all_, 0, v1::JobRequest::kStop));
        EXPECT_TRUE(Sends(all_, 1, v1::JobRequest::kStop));
        EndAll();
      }
      ASSERT_TRUE(finished_);
      if (state == State::kStopping) {
        EXPECT_EQ(verdict().exit_code, 1);  // the worker's failure came first
      } else {
        EXPECT_EQ(verdict().kind, Verdict::Kind::kSignal);
        EXPECT_EQ(verdict().signal, signal);
        EXPECT_EQ(verdict().exit_code, 128 + signal);
      }
      for (uint32_t i = 0; i < 2; ++i) EXPECT_TRUE(Disconnects(all_, i)) << i;
    }
  }
}

// Of a host that an elastic job does without: as a cancel, but with all that its workers have
// written.
TEST_F(StoppingTest, WorkersThatNobodyNeedsAreEndedAndTheirOutputIsAwaited) {
  for (State state : kAllStates) {
    SCOPED_TRACE(StateName(state));
    Reset(state);
    Feed(EndAsked{"the host is no longer listed"});
    if (state >= State::kStarting) {
      EXPECT_TRUE(Sends(all_, 0, v1::JobRequest::kStop));
      for (uint32_t i = 0; i < 2; ++i) Over(i);
      Pass(seconds(10));
      EXPECT_FALSE(finished_);
      for (uint32_t i = 0; i < 2; ++i) Drained(i);
    }
    ASSERT_TRUE(finished_);
    if (state == State::kStopping) {
      EXPECT_EQ(verdict().exit_code, 1);  // the worker's failure came first
    } else {
      EXPECT_EQ(verdict().exit_code, 143);
      EXPECT_EQ(verdict().message, "the host is no longer listed");
    }
  }
}

// K1
TEST_F(StoppingTest, ASecondInterruptKillsNow) {
  Reset(State::kRunning);
  Signal(SIGINT);
  const auto actions = Signal(SIGINT);
  ASSERT_EQ(JobSentTo(1, actions).size(), 1u);
  EXPECT_EQ(JobSentTo(1, actions)[0].stop().grace_ms(), 0u);
  ASSERT_EQ(SentTo(1, actions).size(), 1u) << "its agent, should the shepherd not hear";
  EXPECT_EQ(SentTo(1, actions)[0].end_job().grace_ms(), 1000u);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 130);
}

TEST_F(StoppingTest, AnInterruptAfterATermKillsNow) {
  Reset(State::kRunning);
  Signal(SIGTERM);
  EXPECT_TRUE(Sends(Signal(SIGINT), 0, v1::JobRequest::kStop));
  EndAll();
  EXPECT_EQ(verdict().exit_code, 143);
}

// K9: the time limit is a cancel, so this is the second.
TEST_F(StoppingTest, AnInterruptAfterTheTimeLimitKillsNow) {
  options_.time_limit = seconds(20);
  Reset(State::kRunning);
  Pass(seconds(20), {0, 1});
  ASSERT_EQ(core_->state(), State::kStopping);
  const auto actions = Signal(SIGINT);
  ASSERT_EQ(JobSentTo(1, actions).size(), 1u);
  EXPECT_EQ(JobSentTo(1, actions)[0].stop().grace_ms(), 0u);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 209);
}

// That of an elastic job, which counts it for all its hosts.
TEST_F(StoppingTest, AnInterruptAfterAnEndThatCancelsKillsNow) {
  for (const bool cancels : {false, true}) {
    SCOPED_TRACE(cancels);
    Reset(State::kRunning);
    Feed(EndAsked{"the job is over", cancels});
    ASSERT_EQ(core_->state(), State::kStopping);
    const auto actions = Signal(SIGINT);
    ASSERT_EQ(JobSentTo(1, actions).size(), 1u);
    EXPECT_EQ(JobSentTo(1, actions)[0].stop().grace_ms(), cancels ? 0u : 5000u);
    EndAll();
    EXPECT_EQ(verdict().exit_code, 143);
  }
}

// Its host was ending when the time limit of the elastic job came.
TEST_F(StoppingTest, AnEndThatCancelsCountsAlsoWhileStopping) {
  for (const bool cancels : {false, true}) {
    SCOPED_TRACE(cancels);
    Reset(State::kStopping);
    Feed(EndAsked{"the job is over", cancels});
    const auto actions = Signal(SIGINT);
    ASSERT_EQ(JobSentTo(1, actions).size(), 1u);
    EXPECT_EQ(JobSentTo(1, actions)[0].stop().grace_ms(), cancels ? 0u : 5000u);
    EndAll();
    EXPECT_EQ(verdict().exit_code, 1);  // the worker's failure came first
  }
}

// A detached job hears of no Ctrl-C. What comes from two terminals at the same time is one stop.
TEST_F(StoppingTest, ASecondStopCommandKillsNow) {
  const UserSignal stop{SIGTERM, absl::StrCat(kStopCommand, "root, node0)")};
  const UserSignal other{SIGTERM, "bash (pid 17, root)"};
  for (const bool limit : {false, true}) {
    SCOPED_TRACE(limit);
    options_.time_limit = limit ? seconds(20) : Duration::zero();
    Reset(State::kRunning);
    if (limit) {
      Pass(seconds(20), {0, 1});
    } else {
      Feed(stop);
    }
    ASSERT_EQ(core_->state(), State::kStopping);
    Pass(milliseconds(2999), {0, 1});
    EXPECT_FALSE(Sends(Feed(stop), 1, v1::JobRequest::kStop));
    Pass(milliseconds(1), {0, 1});
    EXPECT_FALSE(Sends(Feed(other), 1, v1::JobRequest::kStop));
    const auto actions = Feed(stop);
    ASSERT_EQ(JobSentTo(1, actions).size(), 1u);
    EXPECT_EQ(JobSentTo(1, actions)[0].stop().grace_ms(), 0u);
    EndAll();
    EXPECT_EQ(verdict().exit_code, limit ? 209 : 143);
  }
}

// K7
TEST_F(StoppingTest, ATermEveryTenMillisecondsChangesNothing) {
  for (State state : kAllStates) {
    SCOPED_TRACE(StateName(state));
    Reset(state);
    Signal(SIGTERM);
    const size_t after_first = all_.size();
    for (int i = 0; i < 300 && !finished_; ++i) {
      Pass(milliseconds(10), {0, 1});
      Signal(SIGTERM);
    }
    for (size_t i = after_first; i < all_.size(); ++i) {
      EXPECT_TRUE(std::holds_alternative<job::Beat>(all_[i]));
    }
    EndAll();
    EXPECT_TRUE(finished_);
  }
}

// D4, D7: the shepherd kills at the grace; if it seems not to, we say so. Its own report of what
// cannot be killed is awaited, but not for ever.
TEST_F(StoppingTest, WhoDoesNotEndIsKilledAndThenTold) {
  options_.grace = seconds(5);
  Reset(State::kRunning);
  Exit(0, 3);
  Exit(1, 0, SIGTERM, true);
  Over(0);
  Drained(0);
  Pass(milliseconds(5999), {1});
  const size_t before = all_.size();
  Pass(milliseconds(1), {1});
  const std::vector<Action> fresh(all_.begin() + before, all_.end());
  ASSERT_TRUE(Sends(fresh, 1, v1::JobRequest::kStop));
  EXPECT_FALSE(Sends(fresh, 0, v1::JobRequest::kStop));
  ASSERT_FALSE(JobSentTo(1, fresh).empty());
  EXPECT_EQ(JobSentTo(1, fresh).back().stop().grace_ms(), 0u);
  ASSERT_FALSE(SentTo(1, fresh).empty());
  EXPECT_TRUE(SentTo(1, fresh).back().has_end_job());
  Pass(milliseconds(124999), {1});
  EXPECT_FALSE(finished_);
  Pass(milliseconds(1), {1});
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kWorker);
  EXPECT_EQ(verdict().rank, Rank(0));
  EXPECT_EQ(verdict().exit_code, 204);
  EXPECT_THAT(verdict().message, HasSubstr("node1"));
}

TEST_F(StoppingTest, AFailedCleanupIsToldWhateverEndedTheJob) {
  Reset(State::kRunning);
  Exit(0, 3);
  Failure(1, v1::NodeFailure::KIND_CLEANUP, 204, "pid 77 cannot be ended");
  EndAll();
  EXPECT_EQ(verdict().exit_code, 204);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kWorker);
  EXPECT_TRUE(verdict().left_behind);
  EXPECT_EQ(verdict().message, "node1: pid 77 cannot be ended");
}

TEST_F(StoppingTest, AfterAFailedCleanupTheRestIsNotAwaitedForLong) {
  Reset(State::kRunning);
  Exit(0, 3);
  Over(0);
  Drained(0);
  Failure(1, v1::NodeFailure::KIND_CLEANUP, 204, "pid 77 cannot be ended");
  Pass(seconds(5), {1});
  ASSERT_TRUE(finished_);
  EXPECT_THAT(verdict().message, HasSubstr("pid 77"));
  // Nothing was killed before that.
  EXPECT_THAT(verdict().message, HasSubstr("not reported the end of its workers; check"));
}

// Neither more bad news nor a cancel puts the end off.
TEST_F(StoppingTest, TheEndOnlyComesNearer) {
  Reset(State::kRunning);
  Exit(0, 3);
  const TimePoint begin = now_;
  Failure(1, v1::NodeFailure::KIND_CLEANUP, 204, "pid 77 cannot be ended");
  Pass(seconds(3), {0, 1});
  Failure(1, v1::NodeFailure::KIND_CLEANUP, 204, "pid 78 cannot be ended");
  Signal(SIGINT);
  Signal(SIGINT);
  Pass(seconds(60), {0, 1});
  ASSERT_TRUE(finished_);
  EXPECT_EQ(core_->phases().back().begin - begin, seconds(5));
}

TEST_F(StoppingTest, OutputThatIsThroughBeforeTheWorkersEndIsNotAwaitedAgain) {
  Reset(State::kRunning);
  Exit(0, 3);
  EXPECT_TRUE(Drained(1).empty());
  const auto actions = Over(1);
  EXPECT_TRUE(Sends(actions, 1, Kind::kGoodbye));
  EXPECT_TRUE(Disconnects(actions, 1));
  Over(0);
  EXPECT_FALSE(finished_);
  Drained(0);
  EXPECT_TRUE(finished_);
}

// The agent's GPUs may be held for a while after its workers' end; a launch after this one wants
// them.
TEST_F(StoppingTest, ANodeIsDoneWhenItHasEndedAndIsFree) {
  for (bool drained_first : {true, false}) {
    Reset(State::kRunning);
    Exit(0, 3);
    if (drained_first) Drained(1);
    EXPECT_TRUE(Finished(1).empty());
    EXPECT_EQ(core_->nodes()[1].waiting_for, "its GPUs to be free");
    if (!drained_first) {
      EXPECT_TRUE(Drained(1).empty());
    }
    const auto actions = Released(1);
    EXPECT_TRUE(Sends(actions, 1, Kind::kGoodbye));
    EXPECT_TRUE(Disconnects(actions, 1));
    Over(0);
    Drained(0);
    ASSERT_TRUE(finished_);
    EXPECT_EQ(verdict().exit_code, 3);
  }
}

// When a launcher comes back, what the agent says overtakes what the shepherd says again.
TEST_F(StoppingTest, AReleaseBeforeTheEndIsKept) {
  for (State state : {State::kStarting, State::kRunning, State::kStopping}) {
    SCOPED_TRACE(StateName(state));
    Reset(state);
    EXPECT_TRUE(Released(1).empty());
    EXPECT_EQ(core_->state(), state);
    if (state == State::kStarting) {
      Started(0);
      Started(1);
    }
    for (uint32_t rank : {2, 3}) Exit(rank, 0);
    EXPECT_TRUE(Drained(1).empty());
    EXPECT_TRUE(Disconnects(Finished(1), 1));
    EXPECT_EQ(core_->nodes()[1].waiting_for, "");
    for (uint32_t rank : {0, 1}) Exit(rank, 0);
    Over(0);
    Drained(0);
    ASSERT_TRUE(finished_);
    EXPECT_EQ(verdict().exit_code, state == State::kStopping ? 1 : 0);
  }
}

// An agent repeats Released to every launcher that reconnects.
TEST_F(StoppingTest, ASecondReleaseIsNoNews) {
  Reset(State::kRunning);
  Exit(2, 0);
  Exit(3, 0);
  Over(1);
  EXPECT_TRUE(Released(1).empty());
  EXPECT_EQ(core_->state(), State::kRunning);
}

TEST_F(StoppingTest, ANodeThatNeverSaysReleasedIsGivenUp) {
  options_.grace = seconds(5);
  Reset(State::kRunning);
  for (uint32_t rank = 0; rank < 4; ++rank) Exit(rank, 0);
  Over(0);
  Drained(0);
  Finished(1);
  Drained(1);
  const size_t before = all_.size();
  Pass(seconds(6), {1});
  const std::vector<Action> fresh(all_.begin() + before, all_.end());
  ASSERT_TRUE(Sends(fresh, 1, v1::JobRequest::kStop))
      << "its agent waits for GPUs no longer than 2 s then";
  Pass(seconds(125) - milliseconds(1), {1});
  EXPECT_FALSE(finished_);
  Pass(milliseconds(1), {1});
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 204);
  EXPECT_THAT(verdict().message, HasSubstr("node1: its workers have ended, but it has not reported "
                                           "that their GPUs are free"));
  EXPECT_TRUE(Disconnects(all_, 1));
}

TEST_F(StoppingTest, ACancelledJobWaitsForGpusOnlyUntilItGivesUp) {
  for (bool kill : {false, true}) {
    SCOPED_TRACE(kill);
    options_.grace = seconds(5);
    Reset(State::kRunning);
    Signal(SIGINT);
    for (uint32_t i = 0; i < 2; ++i) {
      Finished(i);
      Drained(i);
    }
    if (kill) {
      EXPECT_TRUE(Sends(Signal(SIGINT), 1, v1::JobRequest::kStop));
    }
    Released(0);
    const TimePoint last = now_;
    Pass(seconds(60), {1});
    ASSERT_TRUE(finished_);
    EXPECT_EQ(core_->phases().back().begin - last, kill ? seconds(3) : seconds(9));
    EXPECT_EQ(verdict().exit_code, 204);
  }
}

TEST_F(StoppingTest, AGpuThatIsHeldEndsTheWaitForIt) {
  Reset(State::kRunning);
  for (uint32_t rank = 0; rank < 4; ++rank) Exit(rank, 0);
  Over(0);
  Drained(0);
  Finished(1);
  Drained(1);
  Failure(1, v1::NodeFailure::KIND_CLEANUP, 204, "GPU 0 is held by pid 77");
  EXPECT_FALSE(finished_);
  Released(1);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 204);
  EXPECT_EQ(verdict().message, "node1: GPU 0 is held by pid 77");
}

TEST_F(StoppingTest, ANodeLostBeforeItIsFreeIsNamedForThat) {
  Reset(State::kRunning);
  for (uint32_t rank = 0; rank < 4; ++rank) Exit(rank, 0);
  Finished(1);
  Closed(1, "cut");
  Over(0);
  Drained(0);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message, HasSubstr("has not reported that their GPUs are free"));
}

// As its process may serve ranks of the others, whose end it has not seen.
TEST_F(StoppingTest, AfterASuccessOnlyRank0sNodeIsToldToStop) {
  Reset(State::kRunning);
  for (uint32_t rank = 0; rank < 4; ++rank) Exit(rank, 0);
  ASSERT_EQ(core_->state(), State::kStopping);
  EXPECT_TRUE(Sends(all_, 0, v1::JobRequest::kStop));
  EXPECT_FALSE(Sends(all_, 1, v1::JobRequest::kStop));
  EndAll();
  EXPECT_EQ(verdict().exit_code, 0);
}

// While workers of one node may live, the output of another is awaited for as long as they are.
TEST_F(StoppingTest, ACancelledJobCutsOutputWhenItGivesUpOnTheRest) {
  options_.grace = seconds(5);
  for (bool kill : {false, true}) {
    SCOPED_TRACE(kill);
    Reset(State::kRunning);
    Signal(SIGINT);
    if (kill) Signal(SIGINT);
    const Duration end = kill ? seconds(3) : options_.grace + seconds(1) + seconds(3);
    Over(0);
    Pass(end - milliseconds(1), {0, 1});
    EXPECT_FALSE(Disconnects(all_, 0));
    Pass(milliseconds(1), {0, 1});
    ASSERT_TRUE(finished_);
    EXPECT_THAT(Warnings(), Contains(HasSubstr("output of node0")));
    EXPECT_THAT(verdict().message, HasSubstr("node1: it has not reported the end"));
    EXPECT_EQ(verdict().exit_code, 204);
  }
}

// K8: who cancelled is not kept waiting.
TEST_F(StoppingTest, ACancelShortensTheWaitForNodesThatDoNotAnswer) {
  for (bool cancel_first : {true, false}) {
    Reset(State::kRunning);
    if (!cancel_first) {
      Exit(0, 3);
      Pass(seconds(30), {0, 1});
      EXPECT_FALSE(finished_);
    }
    Signal(SIGINT);
    const TimePoint cancelled = now_;
    Pass(seconds(60), {0, 1});
    ASSERT_TRUE(finished_);
    EXPECT_LE(core_->phases().back().begin - cancelled, options_.grace + seconds(4));
    EXPECT_EQ(verdict().exit_code, 204);
  }
}

// K8: the node's own lease ends its workers; we say that we did not see it.
TEST_F(StoppingTest, ANodeThatHangsAfterACancelIsGivenUpWithinTheGraceAndFiveSeconds) {
  for (const Duration grace :
       {Duration(milliseconds(0)), Duration(seconds(2)), Duration(seconds(40))}) {
    options_.grace = grace;
    options_.lease = seconds(60);
    Reset(State::kRunning);
    Signal(SIGINT);
    const TimePoint cancelled = now_;
    Over(0);
    Drained(0);
    Pass(grace + milliseconds(3999), {});
    EXPECT_FALSE(finished_);
    Pass(seconds(1), {});
    ASSERT_TRUE(finished_);
    EXPECT_EQ(core_->phases().back().begin - cancelled, grace + seconds(4));
    EXPECT_EQ(verdict().exit_code, 204);
    EXPECT_THAT(verdict().message, HasSubstr("node1"));
    EXPECT_TRUE(Disconnects(all_, 1));
  }
}

// K8: of a node that is lost meanwhile we know that much; its workers are its own lease's.
TEST_F(StoppingTest, ANodeLostAfterACancelEndsTheWaitForIt) {
  options_.grace = seconds(5);
  options_.lease = seconds(3);
  Reset(State::kRunning);
  Signal(SIGINT);
  Over(0);
  Drained(0);
  Pass(seconds(3));
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 130);
  EXPECT_THAT(Warnings(), Contains(HasSubstr("node1")));
}

TEST_F(StoppingTest, ANodeLostWhileStoppingIsWarnedOfAndTheRestGoesOn) {
  Reset(State::kRunning);
  Exit(0, 3);
  Closed(1, "cut");
  EXPECT_THAT(Warnings(), Contains(AllOf(HasSubstr("node1"), HasSubstr("cut"))));
  EXPECT_FALSE(finished_);
  Over(0);
  Drained(0);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 3);
}

TEST_F(StoppingTest, ANodeSilentWhileStoppingIsLetGo) {
  options_.lease = seconds(4);
  Reset(State::kRunning);
  Exit(0, 3);
  Over(0);
  Drained(0);
  Pass(seconds(4));
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 3);
  EXPECT_THAT(Warnings(), Contains(HasSubstr("no message from it")));
}

TEST_F(StoppingTest, AfterASuccessANodeThatIsLostIsAnError) {
  Reset(State::kRunning);
  for (uint32_t rank = 0; rank < 4; ++rank) Exit(rank, 0);
  Closed(1, "cut");
  Over(0);
  Drained(0);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 202);
}

TEST_F(StoppingTest, WhatASuccessLeavesBehindIsKilled) {
  options_.grace = seconds(1);
  Reset(State::kRunning);
  for (uint32_t rank = 0; rank < 4; ++rank) Exit(rank, 0);
  Pass(seconds(2), {0, 1});
  EXPECT_TRUE(Sends(all_, 0, v1::JobRequest::kStop));
  EndAll();
  EXPECT_EQ(verdict().exit_code, 0);
}

// A user may sit in a pager: output is awaited, until Ctrl-C.
TEST_F(StoppingTest, OutputIsAwaitedUntilTheUserCancels) {
  Reset(State::kRunning);
  for (uint32_t rank = 0; rank < 4; ++rank) Exit(rank, 0);
  Over(0);
  Over(1);
  Drained(0);
  Pass(seconds(3600), {1});
  EXPECT_FALSE(finished_);
  Signal(SIGINT);
  EXPECT_FALSE(finished_);
  Pass(seconds(1), {1});
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 130);
  EXPECT_THAT(Warnings(), Contains(HasSubstr("output of node1")));
}

TEST_F(StoppingTest, ASecondInterruptAwaitsNoOutput) {
  Reset(State::kRunning);
  Exit(0, 3);
  Over(0);
  Over(1);
  Signal(SIGINT);
  EXPECT_FALSE(finished_);
  Signal(SIGINT);
  EXPECT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 3);
}

// K4
TEST_F(StoppingTest, OutputThatCannotBeWrittenEndsTheJobAndIsNotAwaited) {
  for (bool signal : {true, false}) {
    for (State state : kAllStates) {
      SCOPED_TRACE(StateName(state));
      Reset(state);
      if (signal) {
        Signal(SIGPIPE);
      } else {
        Feed(OutputFailed{"No space left on device"});
      }
      if (state >= State::kStarting) {
        Over(0);
        Over(1);
      }
      ASSERT_TRUE(finished_);
      EXPECT_EQ(verdict().exit_code, state == State::kStopping ? 1 : 141);
    }
  }
}

// K9
TEST_F(StoppingTest, TheTimeLimitEndsTheJobInEveryState) {
  options_.time_limit = seconds(20);
  options_.start_timeout = seconds(100);
  for (State state : kAllStates) {
    if (state == State::kStopping) continue;
    SCOPED_TRACE(StateName(state));
    Reset(state);
    Pass(milliseconds(19999), {0, 1});
    EXPECT_EQ(core_->state(), state);
    Pass(milliseconds(1), {0, 1});
    if (state >= State::kStarting) {
      EXPECT_EQ(core_->state(), State::kStopping);
      EndAll();
    }
    ASSERT_TRUE(finished_);
    EXPECT_EQ(verdict().kind, Verdict::Kind::kTimeLimit);
    EXPECT_EQ(verdict().exit_code, 209);
    EXPECT_THAT(verdict().message, HasSubstr("20 s"));
  }
}

TEST_F(StoppingTest, TheFirstVerdictStands) {
  Reset(State::kRunning);
  Signal(SIGTERM);
  Exit(0, 9);
  Failure(1, v1::NodeFailure::KIND_STATE, 207, "disk");
  Closed(1);
  Over(0);
  Drained(0);
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 143);
  EXPECT_EQ(core_->secondary_deaths(), 1u);
}

TEST_F(StoppingTest, AGraceOfZeroKillsAtOnce) {
  options_.grace = Duration::zero();
  Reset(State::kRunning);
  const auto actions = Exit(0, 3);
  EXPECT_EQ(JobSentTo(1, actions)[0].stop().grace_ms(), 0u);
}

// A node whose workers still write files says so again and again, and its shepherd knows how long
// that may go on.
TEST_F(StoppingTest, ANodeThatSavesIsNotToldToKill) {
  options_.grace = seconds(5);
  options_.grace_limit = std::chrono::minutes(10);
  Reset(State::kRunning);
  Signal(SIGINT);
  v1::JobEvent saving;
  saving.mutable_saving();
  for (int i = 0; i < 30; ++i) {
    Pass(seconds(1), {0, 1});
    Message(1, saving);
  }
  EXPECT_FALSE(finished_);
  EXPECT_EQ(JobSentTo(1, all_).back().stop().grace_ms(), 5000u);
  Pass(seconds(5), {0, 1});
  EXPECT_EQ(JobSentTo(1, all_).back().stop().grace_ms(), 0u);
  Pass(seconds(4), {0, 1});
  EXPECT_TRUE(finished_);
}

// Ranks elsewhere may wait for those that save, as in a barrier at the end of a checkpoint.
TEST_F(StoppingTest, TheOtherNodesHearThatOneSaves) {
  options_.grace = seconds(5);
  options_.grace_limit = std::chrono::minutes(10);
  Reset(State::kRunning);
  v1::JobEvent saving;
  saving.mutable_saving();
  EXPECT_TRUE(Message(1, saving).empty()) << "nothing has been stopped yet";
  Signal(SIGINT);
  int told = 0;
  for (int i = 0; i < 20; ++i) {
    const auto actions = Message(1, saving);
    EXPECT_FALSE(Sends(actions, 1, v1::JobRequest::kSaving)) << "it knows";
    if (Sends(actions, 0, v1::JobRequest::kSaving)) ++told;
    Pass(milliseconds(500), {0, 1});
  }
  EXPECT_EQ(told, 10) << "once a second";
  EXPECT_TRUE(Sends(Message(0, saving), 1, v1::JobRequest::kSaving));
  Over(0);
  Pass(seconds(1), {0, 1});
  EXPECT_FALSE(Sends(Message(1, saving), 0, v1::JobRequest::kSaving)) << "it has ended";
}

TEST_F(StoppingTest, NobodyHearsOfASaveThatIsKilled) {
  options_.grace_limit = std::chrono::minutes(10);
  Reset(State::kRunning);
  Signal(SIGINT);
  Signal(SIGINT);
  v1::JobEvent saving;
  saving.mutable_saving();
  EXPECT_FALSE(Sends(Message(1, saving), 0, v1::JobRequest::kSaving));
}

// The kernel's, for memory, in the grace.
TEST_F(StoppingTest, AKillInTheGraceOfACancelledJobIsNotItsCause) {
  Reset(State::kRunning);
  Signal(SIGINT);
  Exit(0, 0, SIGKILL);
  for (uint32_t rank : {1, 2, 3}) Exit(rank, 0, SIGTERM, /*told=*/true);
  EndAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kSignal);
  EXPECT_EQ(verdict().exit_code, 130);
}

// With agents that never answer, the end still comes.
TEST_F(StoppingTest, TheEndAlwaysComes) {
  options_.grace = seconds(5);
  for (State state : kAllStates) {
    SCOPED_TRACE(StateName(state));
    Reset(state);
    Signal(SIGTERM);
    const TimePoint cancelled = now_;
    Pass(seconds(60), {0, 1});
    EXPECT_TRUE(finished_);
    EXPECT_EQ(verdict().exit_code, state >= State::kStarting ? 204 : 143);
    EXPECT_LE(core_->phases().back().begin - cancelled, seconds(5 + 4));
  }
}

// By an agent: what the attempt ends for stands, but no other may follow.
TEST_F(StoppingTest, AStopThatComesWhileTheAttemptEndsIsKept) {
  Make(2);
  RunUntil(State::kRunning);
  EXPECT_EQ(core_->stopped(), "");
  Exit(0, 7);
  Over(0);
  Failure(1, v1::NodeFailure::KIND_UNSPECIFIED, kExitTerminated, "the job was stopped here by bob");
  Failure(1, v1::NodeFailure::KIND_UNSPECIFIED, kExitTerminated, "the job was stopped here by eve");
  for (uint32_t rank = 1; rank < 4; ++rank) Exit(rank, 0, 15, /*told=*/true);
  EndAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 7);
  EXPECT_EQ(core_->stopped(), "node1: the job was stopped here by bob");
}

TEST_F(StoppingTest, AStopOfAJobThatHasSucceededChangesNothing) {
  Make(2);
  RunUntil(State::kRunning);
  for (uint32_t rank = 0; rank < 4; ++rank) Exit(rank, 0);
  Failure(1, v1::NodeFailure::KIND_UNSPECIFIED, kExitTerminated, "the job was stopped here by bob");
  EndAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kSuccess);
}

// Whatever else is awaited, and if the job could do without that node.
TEST_F(StoppingTest, AStopBeforeTheStartEndsTheJobAtOnce) {
  for (const uint32_t least : {0, 1}) {
    for (const bool welcomed : {false, true}) {
      SCOPED_TRACE(absl::StrCat(least, welcomed));
      options_.min_nodes = least;
      finished_ = false;
      all_.clear();
      Make(3);
      Feed(NodeConnected{NodeId(0)});
      Feed(NodeConnected{NodeId(1)});
      Welcome(0);
      if (welcomed) Welcome(1);
      Failure(1, v1::NodeFailure::KIND_UNSPECIFIED, kExitTerminated, "stopped here by bob");
      EXPECT_TRUE(finished_);
      EXPECT_EQ(verdict().exit_code, kExitTerminated);
      EXPECT_EQ(verdict().message, "node1: stopped here by bob");
      EXPECT_TRUE(Sends(all_, 0, v1::SessionRequest::kGoodbye));
    }
  }
}

}  // namespace
}  // namespace dtrain::job
