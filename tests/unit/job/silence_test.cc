// SPDX-License-Identifier: Apache-2.0
// Nodes that are not heard from, and pauses of this launcher itself.
#include <algorithm>
#include <chrono>
#include <csignal>

#include "common/base/exit_code.h"
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class SilenceTest : public JobFixture {
 protected:
  // The node that is left, after the other was lost: the job is over then.
  void EndNode0() {
    Exit(0, 0, SIGTERM, /*told=*/true);
    Exit(1, 0, SIGTERM, /*told=*/true);
    Over(0);
    Drained(0);
    Pass(seconds(20));
    ASSERT_TRUE(finished_);
  }
};

// What a node that is not heard may hear of us keeps its workers alive: the time at which they are
// dead counts from our last beat, and a suspect gets none.
TEST_F(SilenceTest, TheWorkersOfALostNodeAreDeadAtATimeThatIsKnown) {
  options_.lease = seconds(15);
  options_.grace = seconds(5);
  Make(2);
  RunUntil(State::kRunning);
  EXPECT_LT(core_->dead_at(), now_ + seconds(30));
  const TimePoint heard = now_;
  TimePoint last_beat = now_;
  while (core_->state() == State::kRunning) {
    const size_t before = all_.size();
    Pass(milliseconds(100), {0});
    for (size_t i = before; i < all_.size(); ++i) {
      const auto* beat = std::get_if<job::Beat>(&all_[i]);
      if (beat == nullptr) continue;
      if (std::count(beat->nodes.begin(), beat->nodes.end(), NodeId(1)) > 0) last_beat = now_;
    }
  }
  EXPECT_LE(last_beat, heard + seconds(6));
  EndNode0();
  EXPECT_GE(core_->dead_at(), last_beat - milliseconds(100) + seconds(20));
  EXPECT_LE(core_->dead_at(), last_beat + seconds(21));
  EXPECT_THAT(core_->verdict().nodes, ElementsAre(NodeId(1)));
}

TEST_F(SilenceTest, NobodyIsWaitedForIfAllHaveReportedTheirEnd) {
  Make(2);
  RunUntil(State::kRunning);
  Exit(0, 7);
  for (uint32_t rank = 1; rank < 4; ++rank) Exit(rank, 0, SIGTERM, /*told=*/true);
  for (uint32_t node = 0; node < 2; ++node) {
    Over(node);
    Drained(node);
  }
  ASSERT_TRUE(finished_);
  EXPECT_LT(core_->dead_at(), now_);
  EXPECT_THAT(core_->verdict().nodes, ElementsAre(NodeId(0)));  // of the rank
}

// G1: silence is noticed when the lease is over, not later.
TEST_F(SilenceTest, ASilentNodeIsLostAfterTheLease) {
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
  EXPECT_TRUE(Sends(fresh, 0, v1::JobRequest::kStop));
  Over(0);
  Drained(0);
  EXPECT_EQ(verdict().exit_code, 202);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("node1"), HasSubstr("15 s")));
}

// Its nodes go on without the launcher of a detached job: where it hears none of them, it is the
// one who is cut off.
class CutOffTest : public SilenceTest {
 protected:
  CutOffTest() {
    options_.lease = seconds(15);
    options_.away = std::chrono::hours(1);
    Make(3);
    RunUntil(State::kRunning);
  }
};

TEST_F(CutOffTest, NobodyIsLostUntilTheyHaveGivenUp) {
  Pass(seconds(16), {});
  EXPECT_EQ(core_->state(), State::kRunning);
  EXPECT_THAT(core_->warnings().back(),
              AllOf(HasSubstr("no node was heard for 15 s"), HasSubstr("--away")));
  const size_t warnings = core_->warnings().size();
  Pass(std::chrono::minutes(59), {});
  EXPECT_EQ(core_->state(), State::kRunning);
  EXPECT_EQ(core_->warnings().size(), warnings);
  Pass(std::chrono::minutes(1), {});
  EXPECT_EQ(core_->state(), State::kFinished);
  EXPECT_EQ(verdict().exit_code, 202);
}

TEST_F(CutOffTest, WhenOneIsHeardAgainTheOthersHaveALeaseToBe) {
  Pass(seconds(1000), {});
  Beat(0);
  Pass(seconds(14), {0});
  EXPECT_EQ(core_->state(), State::kRunning);
  Beat(1);
  Pass(seconds(2), {0, 1});
  EXPECT_EQ(core_->state(), State::kStopping) << "node2 is not back";
  EXPECT_TRUE(core_->nodes()[2].gone);
  EXPECT_FALSE(core_->nodes()[1].gone);
}

TEST_F(CutOffTest, ItGoesOnAsIfNothingHadBeen) {
  for (int i = 0; i < 3; ++i) {
    Pass(seconds(100), {});
    for (const uint32_t node : {0, 1, 2}) Beat(node);
    Pass(seconds(40), {0, 1, 2});
  }
  EXPECT_EQ(core_->state(), State::kRunning);
}

TEST_F(CutOffTest, ANodeThatAloneIsSilentIsLostAfterTheLease) {
  Pass(seconds(14), {0, 1});
  EXPECT_EQ(core_->state(), State::kRunning);
  Pass(seconds(1), {0, 1});
  EXPECT_EQ(core_->state(), State::kStopping);
  EXPECT_TRUE(core_->nodes()[2].gone);
  EXPECT_FALSE(core_->nodes()[1].gone);
}

TEST_F(CutOffTest, AStopWaitsForTheLeaseOnly) {
  Pass(seconds(100), {});
  Feed(UserSignal{SIGTERM});
  Pass(seconds(16), {});
  EXPECT_EQ(core_->state(), State::kFinished);
}

// C11: first a word, and another one when it was a false alarm.
TEST_F(SilenceTest, ASilentNodeIsSuspectFirst) {
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
TEST_F(SilenceTest, ASuspectNodeIsDialedAnew) {
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

// C11, K6: our own pause is nobody's silence. Before and after it each node has its lease.
TEST_F(SilenceTest, OurOwnPauseLosesNobody) {
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
TEST_F(SilenceTest, ManyShortPausesDoNotCountEither) {
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
TEST_F(SilenceTest, ALittleLatenessCounts) {
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
TEST_F(SilenceTest, APauseBeyondTheLeaseIsToldAsOurs) {
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
TEST_F(SilenceTest, ANodeThatIsLostAfterAPauseIsNamedWithThePause) {
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

TEST_F(SilenceTest, AMachineThatWasStartedAnewDuringAPauseIsNamed) {
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

// What goes wrong on other nodes as the job ends is not the reason.
TEST_F(SilenceTest, AFailureToStartAfterAPauseIsNotTheReason) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kStarting);
  Pass(seconds(3), {0, 1});
  now_ += seconds(40);
  Feed(NodeClosed{NodeId(1), absl::AbortedError("the launcher was not heard from")});
  Failure(0, v1::NodeFailure::KIND_STATE, 207, "disk");
  Over(0);
  Drained(0);
  ASSERT_TRUE(finished_);
  EXPECT_THAT(verdict().message, StartsWith("this launcher did not run for 37 s "));
  EXPECT_EQ(verdict().exit_code, 202);
}

// Suspect nodes of a short lease, whose next look is due after they could be suspect again.
TEST_F(SilenceTest, ANodeThatWasHeardFromAgainIsSuspectAgainInTime) {
  options_.lease = seconds(3);
  Make(2);
  RunUntil(State::kRunning);
  Pass(milliseconds(1200), {0});
  ASSERT_TRUE(core_->nodes()[1].suspect);
  Beat(1);
  Pass(milliseconds(1199), {0});
  EXPECT_FALSE(core_->nodes()[1].suspect);
  Pass(milliseconds(1), {0});
  EXPECT_TRUE(core_->nodes()[1].suspect);
}

TEST_F(SilenceTest, ANodeThatDiedDuringAPauseHasALine) {
  options_.lease = seconds(15);
  Make(2);
  RunUntil(State::kRunning);
  Pass(seconds(3), {0, 1});
  now_ += seconds(40);
  Exit(0, 0, SIGTERM, /*told=*/true);
  Exit(1, 0, SIGTERM, /*told=*/true);
  Over(0);
  Drained(0);
  Pass(seconds(20));
  EXPECT_THAT(verdict().message, StartsWith("this launcher did not run for 37 s "));
  EXPECT_THAT(Warnings(),
              testing::Contains(StartsWith("node1: the connection to its agent is lost: "
                                           "no message from it for 15")));
}

// Our own node's ranks fail when those of the others are gone, and may be heard of first.
TEST_F(SilenceTest, ARankThatFailsByOurPauseIsNotItsCause) {
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
TEST_F(SilenceTest, ASleepIsToldAsOurs) {
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

TEST_F(SilenceTest, AShortPauseIsNoCause) {
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
TEST_F(SilenceTest, TheAgentOfOurOwnMachineIsNotLostBySilence) {
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
TEST_F(SilenceTest, AResidentAgentOfOurOwnMachineHasALease) {
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
TEST_F(SilenceTest, PausesOfLongAgoAreForgotten) {
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

// 5.3: a shepherd that is stopped, or hangs, behind an agent that speaks.
class ShepherdSilenceTest : public SilenceTest {
 protected:
  ShepherdSilenceTest() {
    options_.lease = seconds(15);
    Make(2);
  }
  // Node 0 is well; of node 1 the agent is.
  void PassWithoutShepherd(Duration duration) {
    for (const TimePoint end = now_ + duration; now_ < end && !finished_;) {
      Beat(0);
      BeatOfAgent(1);
      Pass(std::min<Duration>(seconds(1), end - now_));
    }
  }
};

TEST_F(ShepherdSilenceTest, ItIsNamedAfterTheLeaseAndTheAgentIsNotLost) {
  RunUntil(State::kRunning);
  PassWithoutShepherd(seconds(15));
  EXPECT_EQ(core_->state(), State::kRunning);
  const size_t before = all_.size();
  PassWithoutShepherd(seconds(5));
  ASSERT_EQ(core_->state(), State::kStopping);
  const std::vector<Action> fresh(all_.begin() + static_cast<ptrdiff_t>(before), all_.end());
  EXPECT_FALSE(Disconnects(fresh, 1)) << "its agent is to end the workers";
  for (uint32_t node = 0; node < 2; ++node) {
    Failure(node, v1::NodeFailure::KIND_UNSPECIFIED, 1, "later");
    Over(node);
    Drained(node);
  }
  ASSERT_TRUE(finished_);
  EXPECT_EQ(core_->verdict().exit_code, kExitAgentLost);
  EXPECT_THAT(core_->verdict().message,
              AllOf(HasSubstr("node1"), HasSubstr("has said nothing for 1"),
                    HasSubstr("while its agent answers")));
}

TEST_F(ShepherdSilenceTest, OneThatAnswersBeatsIsWell) {
  RunUntil(State::kRunning);
  Pass(seconds(120), {0, 1});
  EXPECT_EQ(core_->state(), State::kRunning);
}

TEST_F(ShepherdSilenceTest, AnyWordOfItIsOne) {
  RunUntil(State::kRunning);
  for (int i = 0; i < 10; ++i) {
    PassWithoutShepherd(seconds(12));
    v1::JobEvent event;
    event.mutable_progress();
    Message(1, event);
  }
  EXPECT_EQ(core_->state(), State::kRunning);
}

// When its workers have ended it may go, too.
TEST_F(ShepherdSilenceTest, OneThatHasFinishedOwesNothing) {
  RunUntil(State::kRunning);
  Exit(2, 0);
  Exit(3, 0);
  Finished(1);
  PassWithoutShepherd(seconds(25));
  EXPECT_EQ(core_->state(), State::kRunning);
}

// Both are silent: it is the node.
TEST_F(ShepherdSilenceTest, ASilentAgentIsTheFault) {
  RunUntil(State::kRunning);
  Pass(seconds(16), {0});
  ASSERT_EQ(core_->state(), State::kStopping);
  EndNode0();
  EXPECT_EQ(core_->verdict().exit_code, kExitNodeLost);
}

TEST_F(ShepherdSilenceTest, OurOwnPauseIsNotItsSilence) {
  RunUntil(State::kRunning);
  PassWithoutShepherd(seconds(5));
  now_ += seconds(60);
  Feed(Tick{});
  Beat(0);
  Beat(1);
  Feed(Tick{});
  Pass(seconds(20), {0, 1});
  EXPECT_EQ(core_->state(), State::kRunning);
}

}  // namespace
}  // namespace dtrain::job
