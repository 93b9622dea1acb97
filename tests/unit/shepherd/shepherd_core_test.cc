// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/shepherd_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace dtrain::shepherd {

void PrintTo(Action action, std::ostream* os) { *os << static_cast<int>(action); }
void PrintTo(State state, std::ostream* os) {
  *os << std::string(StateName(state).data(), StateName(state).size());
}

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using A = Action;

class CoreTest : public ::testing::Test {
 protected:
  std::vector<Action> On(const Event& event) {
    auto actions = core_.OnEvent(now_, event);
    EXPECT_TRUE(actions.ok()) << actions.status();
    return actions.ok() ? *actions : std::vector<Action>{};
  }
  bool Refused(const Event& event) {
    State before = core_.state();
    bool refused = !core_.OnEvent(now_, event).ok();
    EXPECT_EQ(core_.state(), before);
    return refused;
  }
  std::vector<Action> AtDeadline() {
    now_ = core_.NextDeadline();
    return core_.OnDeadline(now_);
  }
  void Running(size_t workers = 2) {
    On(PartArrived{workers, seconds(5)});
    On(Spawned{});
  }
  void Stopping() {
    Running();
    On(StopAsked{seconds(3)});
  }
  void Killing() {
    Running();
    On(StopAsked{});
  }
  void Lingering() {
    Running(1);
    EXPECT_THAT(On(WorkerEnded{}), ElementsAre(A::kAwaitRest));
  }
  void Sweeping() {
    Lingering();
    On(NothingLeft{});
  }
  void Draining() {
    Sweeping();
    On(Swept{});
  }
  void Finished() {
    Draining();
    On(Drained{});
  }

  TimePoint now_ = TimePoint{} + std::chrono::hours(1);
  ShepherdCore core_;
};

TEST_F(CoreTest, APartIsSpawned) {
  EXPECT_THAT(On(PartArrived{2, seconds(5)}), ElementsAre(A::kSpawn));
  EXPECT_EQ(core_.state(), State::kStarting);
  EXPECT_EQ(core_.NextDeadline(), kNever);
  EXPECT_THAT(On(Spawned{}), IsEmpty());
  EXPECT_EQ(core_.state(), State::kRunning);
  EXPECT_EQ(core_.live_workers(), 2u);
}

TEST_F(CoreTest, APartMayHaveToBePreparedFirst) {
  EXPECT_THAT(On(PartArrived{2, seconds(5), /*prepare=*/true}), ElementsAre(A::kPrepare));
  EXPECT_EQ(core_.state(), State::kPreparing);
  EXPECT_EQ(core_.NextDeadline(), kNever);
  EXPECT_THAT(On(Prepared{}), ElementsAre(A::kSpawn));
  EXPECT_EQ(core_.state(), State::kStarting);
  EXPECT_TRUE(Refused(Prepared{}));
}

TEST_F(CoreTest, APreparationEndsWithAFailureAStopOrTheAgent) {
  for (const Event& event :
       std::vector<Event>{SpawnFailed{0}, StopAsked{seconds(1)}, StopAsked{}, AgentGone{}}) {
    core_ = {};
    On(PartArrived{2, seconds(5), /*prepare=*/true});
    EXPECT_THAT(On(event), ElementsAre(A::kSweep));
    EXPECT_EQ(core_.state(), State::kSweeping);
    EXPECT_TRUE(core_.stop_asked());
    EXPECT_TRUE(Refused(Prepared{}));
  }
}

TEST_F(CoreTest, APartWithoutWorkersIsRefused) { EXPECT_TRUE(Refused(PartArrived{0, seconds(5)})); }

TEST_F(CoreTest, ASecondPartIsRefused) {
  Running();
  EXPECT_TRUE(Refused(PartArrived{1, seconds(1)}));
}

TEST_F(CoreTest, WaitingEndsWithAStop) {
  EXPECT_THAT(On(StopAsked{seconds(1)}), ElementsAre(A::kFinish));
  EXPECT_EQ(core_.state(), State::kFinished);
}

TEST_F(CoreTest, WaitingEndsWithAStopNow) { EXPECT_THAT(On(StopAsked{}), ElementsAre(A::kFinish)); }

TEST_F(CoreTest, WaitingEndsWithTheAgent) {
  EXPECT_THAT(On(AgentGone{}), ElementsAre(A::kFinish));
  EXPECT_TRUE(core_.agent_gone());
}

TEST_F(CoreTest, AFailedSpawnKillsThoseStartedBefore) {
  On(PartArrived{4, seconds(5)});
  EXPECT_THAT(On(SpawnFailed{2}), ElementsAre(A::kKill));
  EXPECT_EQ(core_.state(), State::kKilling);
  EXPECT_TRUE(core_.stop_asked());
  EXPECT_THAT(On(WorkerEnded{}), IsEmpty());
  EXPECT_THAT(On(WorkerEnded{}), ElementsAre(A::kSweep));
}

TEST_F(CoreTest, AFirstSpawnThatFailsHasNothingToKill) {
  On(PartArrived{4, seconds(5)});
  EXPECT_THAT(On(SpawnFailed{0}), ElementsAre(A::kSweep));
  EXPECT_EQ(core_.state(), State::kSweeping);
}

TEST_F(CoreTest, OneWorkersEndLeavesTheOthersRunning) {
  Running(2);
  EXPECT_THAT(On(WorkerEnded{}), IsEmpty());
  EXPECT_EQ(core_.state(), State::kRunning);
  EXPECT_FALSE(core_.stop_asked());
  EXPECT_THAT(On(WorkerEnded{}), ElementsAre(A::kAwaitRest));
  EXPECT_EQ(core_.state(), State::kLingering);
  EXPECT_THAT(On(NothingLeft{}), ElementsAre(A::kSweep));
  EXPECT_EQ(core_.state(), State::kSweeping);
}

// A grace of 5 s, of which a quarter is for processes that need a word.
TEST_F(CoreTest, WhatWorkersLeaveEndsByItselfOrGetsTermAndThenKill) {
  Lingering();
  const TimePoint end = now_;
  EXPECT_EQ(core_.NextDeadline(), end + milliseconds(3750));
  EXPECT_THAT(AtDeadline(), ElementsAre(A::kTerminateRest));
  EXPECT_EQ(core_.state(), State::kHurrying);
  EXPECT_EQ(core_.NextDeadline(), end + seconds(5));
  EXPECT_THAT(AtDeadline(), ElementsAre(A::kTellKilled, A::kSweep));
  EXPECT_EQ(core_.state(), State::kSweeping);
}

TEST_F(CoreTest, WithALongGraceTheLastCallIsFiveSeconds) {
  On(PartArrived{1, seconds(60)});
  On(Spawned{});
  On(WorkerEnded{});
  EXPECT_EQ(core_.NextDeadline(), now_ + seconds(55));
}

TEST_F(CoreTest, WithoutGraceNothingIsAwaited) {
  On(PartArrived{1, {}});
  On(Spawned{});
  On(WorkerEnded{});
  EXPECT_EQ(core_.NextDeadline(), now_);
  EXPECT_THAT(AtDeadline(), ElementsAre(A::kTerminateRest));
  EXPECT_THAT(AtDeadline(), ElementsAre(A::kTellKilled, A::kSweep));
}

TEST_F(CoreTest, AFailureElsewhereLeavesHelpersTheirTime) {
  Lingering();
  const TimePoint deadline = core_.NextDeadline();
  EXPECT_THAT(On(StopAsked{seconds(1)}), IsEmpty());
  EXPECT_EQ(core_.NextDeadline(), deadline);
}

TEST_F(CoreTest, ACancelHurriesHelpers) {
  Lingering();
  const TimePoint end = now_;
  EXPECT_THAT(On(StopAsked{seconds(30), /*cancelled=*/true}), ElementsAre(A::kTerminateRest));
  EXPECT_EQ(core_.state(), State::kHurrying);
  EXPECT_EQ(core_.NextDeadline(), end + seconds(5));
  EXPECT_THAT(On(StopAsked{}), ElementsAre(A::kSweep));
}

TEST_F(CoreTest, TheGraceOfAStopIsForHelpersToo) {
  for (const bool cancelled : {false, true}) {
    core_ = {};
    Running(1);
    const TimePoint stop = now_;
    On(StopAsked{seconds(40), cancelled});
    now_ += seconds(10);
    EXPECT_THAT(On(WorkerEnded{}), ElementsAre(A::kAwaitRest));
    EXPECT_EQ(core_.NextDeadline(), cancelled ? now_ + seconds(2) : stop + seconds(35));
    EXPECT_THAT(AtDeadline(), ElementsAre(A::kTerminateRest));
    EXPECT_EQ(core_.NextDeadline(), stop + seconds(40));
  }
}

// Who writes files when the grace ends has two seconds more, again and again, until the limit.
TEST_F(CoreTest, AGraceGrowsWhileWorkersWrite) {
  Running(1);
  const TimePoint stop = now_;
  On(StopAsked{seconds(5), false, seconds(20)});
  now_ = stop + seconds(1);
  EXPECT_THAT(On(Wrote{}), IsEmpty());
  EXPECT_EQ(core_.NextDeadline(), stop + seconds(5));
  for (const int second : {4, 6, 8, 10, 12, 14, 16, 18}) {
    now_ = stop + seconds(second);
    EXPECT_THAT(On(Wrote{}), IsEmpty());
    EXPECT_EQ(core_.NextDeadline(), now_ + kAfterWriting);
  }
  now_ = stop + milliseconds(19500);
  EXPECT_THAT(On(Wrote{}), IsEmpty());
  EXPECT_EQ(core_.NextDeadline(), stop + seconds(20));
  EXPECT_THAT(AtDeadline(), ElementsAre(A::kTellKilled, A::kKill));
}

TEST_F(CoreTest, AGraceWithoutALimitDoesNotGrow) {
  Running(1);
  const TimePoint stop = now_;
  On(StopAsked{seconds(5)});
  now_ = stop + milliseconds(4900);
  EXPECT_THAT(On(Wrote{}), IsEmpty());
  EXPECT_EQ(core_.NextDeadline(), stop + seconds(5));
}

// For a message: what would have given more time.
TEST_F(CoreTest, AGraceThatMayGrowIsKnownFromOneThatMayNot) {
  const StopAsked by_agent{seconds(5), /*cancelled=*/true};
  const StopAsked by_launcher{seconds(5), /*cancelled=*/true, seconds(20)};
  Running(1);
  On(by_launcher);
  EXPECT_TRUE(core_.may_grow());
  EXPECT_FALSE(core_.at_limit());
  now_ += seconds(19);
  On(Wrote{});
  EXPECT_TRUE(core_.at_limit());

  core_ = {};
  Running(1);
  On(by_agent);
  now_ += seconds(1);
  On(by_launcher);
  On(Wrote{});
  EXPECT_FALSE(core_.may_grow());
  EXPECT_FALSE(core_.at_limit());

  core_ = {};
  Running(1);
  On(by_launcher);
  now_ += seconds(4);
  On(Wrote{});
  On(by_agent);
  now_ += seconds(4);
  On(Wrote{});
  EXPECT_EQ(core_.kill_at(), core_.limit_at());
  EXPECT_FALSE(core_.may_grow());
  EXPECT_FALSE(core_.at_limit());
}

TEST_F(CoreTest, OfWhatWorkersLeaveTheGraceMayGrow) {
  On(PartArrived{1, seconds(4), false, seconds(60)});
  On(Spawned{});
  EXPECT_FALSE(core_.may_grow());
  On(WorkerEnded{});
  EXPECT_TRUE(core_.may_grow());
  EXPECT_FALSE(core_.at_limit());
}

// Nobody is there any more who could say that it is enough.
TEST_F(CoreTest, WithoutAnAgentAGraceGrowsNoMore) {
  Running(1);
  On(StopAsked{seconds(5), false, seconds(600)});
  now_ += seconds(4);
  On(Wrote{});
  const TimePoint gone = now_;
  On(AgentGone{});
  for (int i = 0; i < 4; ++i) {
    now_ += seconds(1);
    On(Wrote{});
  }
  EXPECT_EQ(core_.NextDeadline(), gone + seconds(5));
}

TEST_F(CoreTest, HelpersThatWriteAreNotHurried) {
  for (const bool cancelled : {false, true}) {
    core_ = {};
    On(PartArrived{1, seconds(4), false, seconds(60)});
    On(Spawned{});
    if (cancelled) On(StopAsked{seconds(4), true, seconds(60)});
    On(WorkerEnded{});
    const TimePoint end = now_;
    for (int i = 0; i < 10; ++i) {
      now_ += seconds(1);
      EXPECT_THAT(On(Wrote{}), IsEmpty());
      EXPECT_GT(core_.NextDeadline(), now_ + seconds(1));
    }
    EXPECT_EQ(core_.state(), State::kLingering);
    EXPECT_THAT(AtDeadline(), ElementsAre(A::kTerminateRest));
    EXPECT_LE(core_.NextDeadline(), end + seconds(10) + kAfterWriting);
    now_ = core_.NextDeadline() - milliseconds(1);
    EXPECT_THAT(On(Wrote{}), IsEmpty());
    EXPECT_EQ(core_.NextDeadline(), now_ + kAfterWriting);
    EXPECT_THAT(AtDeadline(), ElementsAre(A::kTellKilled, A::kSweep));
  }
}

TEST_F(CoreTest, AnAgentThatIsGoneHurriesHelpers) {
  Lingering();
  EXPECT_THAT(On(AgentGone{}), ElementsAre(A::kTerminateRest));
}

TEST_F(CoreTest, AStopTerminatesThenKillsAfterTheGrace) {
  Running();
  EXPECT_THAT(On(StopAsked{seconds(3)}), ElementsAre(A::kTerminate));
  EXPECT_EQ(core_.state(), State::kStopping);
  EXPECT_EQ(core_.NextDeadline(), now_ + seconds(3));
  EXPECT_THAT(core_.OnDeadline(now_ + seconds(2)), IsEmpty());
  EXPECT_THAT(AtDeadline(), ElementsAre(A::kTellKilled, A::kKill));
  EXPECT_EQ(core_.state(), State::kKilling);
  EXPECT_EQ(core_.NextDeadline(), now_ + kUnkillableAfter);
}

TEST_F(CoreTest, AStopWithoutGraceKills) {
  Running();
  EXPECT_THAT(On(StopAsked{}), ElementsAre(A::kKill));
  EXPECT_EQ(core_.state(), State::kKilling);
}

TEST_F(CoreTest, AnAgentThatIsGoneStopsWithThePartsGrace) {
  Running();
  EXPECT_THAT(On(AgentGone{}), ElementsAre(A::kTerminate));
  EXPECT_EQ(core_.NextDeadline(), now_ + seconds(5));
}

TEST_F(CoreTest, ASecondStopShortensButNeverLengthens) {
  Stopping();
  TimePoint first = core_.NextDeadline();
  EXPECT_THAT(On(StopAsked{seconds(30)}), IsEmpty());
  EXPECT_EQ(core_.NextDeadline(), first);
  EXPECT_THAT(On(StopAsked{seconds(1)}), IsEmpty());
  EXPECT_EQ(core_.NextDeadline(), now_ + seconds(1));
  EXPECT_THAT(On(AgentGone{}), IsEmpty());
  EXPECT_EQ(core_.NextDeadline(), now_ + seconds(1));
}

TEST_F(CoreTest, StoppingKillsAtOnceWhenAsked) {
  Stopping();
  EXPECT_THAT(On(StopAsked{}), ElementsAre(A::kKill));
}

TEST_F(CoreTest, StoppingEndsWithTheLastWorker) {
  Stopping();
  EXPECT_THAT(On(WorkerEnded{}), IsEmpty());
  EXPECT_EQ(core_.state(), State::kStopping);
  EXPECT_THAT(On(WorkerEnded{}), ElementsAre(A::kAwaitRest));
}

TEST_F(CoreTest, KillingIgnoresFurtherStops) {
  Killing();
  TimePoint deadline = core_.NextDeadline();
  now_ += seconds(1);
  EXPECT_THAT(On(StopAsked{seconds(1)}), IsEmpty());
  EXPECT_THAT(On(StopAsked{}), IsEmpty());
  EXPECT_THAT(On(AgentGone{}), IsEmpty());
  EXPECT_EQ(core_.NextDeadline(), deadline);
}

// D7
TEST_F(CoreTest, WhatCannotBeKilledIsReportedAndDoesNotBlock) {
  Killing();
  EXPECT_THAT(On(WorkerEnded{}), IsEmpty());
  EXPECT_THAT(AtDeadline(), ElementsAre(A::kReportUnkillable, A::kDrain));
  EXPECT_EQ(core_.state(), State::kDraining);
  EXPECT_THAT(On(WorkerEnded{}), IsEmpty());  // after all
  EXPECT_THAT(On(Drained{}), ElementsAre(A::kFinish));
}

TEST_F(CoreTest, SweptLogsAreDrained) {
  Sweeping();
  EXPECT_EQ(core_.NextDeadline(), now_ + kUnkillableAfter);
  EXPECT_THAT(On(StopAsked{seconds(1)}), IsEmpty());
  EXPECT_THAT(On(StopAsked{}), IsEmpty());
  EXPECT_THAT(On(Swept{}), ElementsAre(A::kDrain));
  EXPECT_EQ(core_.state(), State::kDraining);
}

// D7
TEST_F(CoreTest, UnkillableLeftoversAreReported) {
  Sweeping();
  EXPECT_THAT(AtDeadline(), ElementsAre(A::kReportUnkillable, A::kDrain));
  EXPECT_THAT(On(Swept{}), IsEmpty());  // too late to matter
}

TEST_F(CoreTest, DrainedLogsFinish) {
  Draining();
  EXPECT_THAT(On(StopAsked{seconds(1)}), IsEmpty());
  EXPECT_THAT(On(StopAsked{}), IsEmpty());
  EXPECT_THAT(On(Drained{}), ElementsAre(A::kFinish));
  EXPECT_EQ(core_.state(), State::kFinished);
  EXPECT_EQ(core_.NextDeadline(), kNever);
}

TEST_F(CoreTest, ADrainThatDoesNotEndIsGivenUp) {
  Draining();
  EXPECT_EQ(core_.NextDeadline(), now_ + kDrainLimit);
  EXPECT_THAT(AtDeadline(), ElementsAre(A::kFinish));
  EXPECT_EQ(core_.state(), State::kFinished);
}

TEST_F(CoreTest, ADrainWaitsLessOnceAStopWasAsked) {
  Draining();
  now_ += seconds(1);
  EXPECT_THAT(On(StopAsked{seconds(30), true}), IsEmpty());
  const TimePoint deadline = now_ + kDrainLimitWhenStopped;
  EXPECT_EQ(core_.NextDeadline(), deadline);
  now_ += seconds(1);
  EXPECT_THAT(On(StopAsked{seconds(30), true}), IsEmpty());
  EXPECT_EQ(core_.NextDeadline(), deadline);
}

TEST_F(CoreTest, FinishedStaysFinished) {
  Finished();
  EXPECT_THAT(On(StopAsked{seconds(1)}), IsEmpty());
  EXPECT_THAT(On(StopAsked{}), IsEmpty());
  EXPECT_THAT(On(AgentGone{}), IsEmpty());
  EXPECT_THAT(On(Swept{}), IsEmpty());
  EXPECT_TRUE(Refused(PartArrived{1, seconds(1)}));
  EXPECT_TRUE(Refused(Spawned{}));
  EXPECT_TRUE(Refused(Drained{}));
}

TEST_F(CoreTest, EventsOfAnotherStateAreRefused) {
  EXPECT_TRUE(Refused(Spawned{}));
  EXPECT_TRUE(Refused(WorkerEnded{}));
  Running();
  EXPECT_TRUE(Refused(Spawned{}));
  EXPECT_TRUE(Refused(SpawnFailed{1}));
  EXPECT_TRUE(Refused(Swept{}));
  EXPECT_TRUE(Refused(Drained{}));
}

// K8: whatever comes in whatever order, the end is reached once, in bounded time, and nothing is
// killed twice over or left.
TEST(CoreRandomTest, EveryRunEndsOnceAndInTime) {
  unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int reached_running = 0;
  for (int run = 0; run < 2000; ++run) {
    ShepherdCore core;
    TimePoint now{};
    size_t living = 0;
    int spawns = 0, kills = 0, sweeps = 0, finishes = 0;
    bool spawning = false, awaiting = false, sweeping = false, draining = false, stop = false;
    TimePoint stopped_at = kNever;
    auto note = [&](const std::vector<Action>& actions) {
      for (Action action : actions) {
        spawns += action == A::kSpawn;
        kills += action == A::kKill;
        sweeps += action == A::kSweep;
        finishes += action == A::kFinish;
        spawning |= action == A::kSpawn;
        awaiting |= action == A::kAwaitRest;
        sweeping |= action == A::kSweep;
        draining |= action == A::kDrain;
      }
    };
    auto give = [&](const Event& event) {
      auto actions = core.OnEvent(now, event);
      if (actions.ok()) note(*actions);
      return actions.ok();
    };
    for (int step = 0; step < 200 && core.state() != State::kFinished; ++step) {
      now += milliseconds(below(2000));
      note(core.OnDeadline(now));
      if (spawning) {
        spawning = false;
        bool fails = below(5) == 0;
        if (fails) {
          living = static_cast<size_t>(below(static_cast<int>(living) + 1));
          ASSERT_TRUE(give(SpawnFailed{living}));
        } else {
          ASSERT_TRUE(give(Spawned{}));
          ++reached_running;
        }
      }
      if (core.state() == State::kStopping || core.state() == State::kLingering ||
          core.state() == State::kHurrying) {
        if (below(2) == 0) {
          ASSERT_TRUE(give(Wrote{}));
        }
      }
      switch (below(8)) {
        case 0:
          if (core.state() == State::kWaiting) {
            living = static_cast<size_t>(1 + below(4));
            ASSERT_TRUE(give(PartArrived{living, seconds(below(3))}));
          }
          break;
        case 1:
        case 2:
          if (living > 0 && core.state() != State::kStarting) {
            --living;
            ASSERT_TRUE(give(WorkerEnded{}));
          }
          break;
        case 3:
          if (core.state() != State::kStarting &&
              (core.state() != State::kWaiting || below(20) == 0)) {
            ASSERT_TRUE(give(StopAsked{seconds(below(4)), below(2) == 0}));
            stop = true;
          }
          break;
        case 4:
          if (below(20) == 0 && core.state() != State::kStarting) {
            ASSERT_TRUE(give(AgentGone{}));
            stop = true;
          }
          break;
        case 5:
          if (std::exchange(awaiting, false) && core.state() != State::kDraining) {
            ASSERT_TRUE(give(NothingLeft{}));
          } else if (std::exchange(sweeping, false)) {
            ASSERT_TRUE(give(Swept{}));
          }
          break;
        case 6:
          if (core.state() == State::kDraining && std::exchange(draining, false)) {
            ASSERT_TRUE(give(Drained{}));
          }
          break;
        default:
          break;
      }
      if (stop && stopped_at == kNever) stopped_at = now;
      ASSERT_LE(spawns, 1);
      ASSERT_LE(kills, 1);
      ASSERT_LE(sweeps, 1);
      ASSERT_LE(finishes, 1);
      ASSERT_EQ(finishes == 1, core.state() == State::kFinished);
      if (core.state() == State::kStarting || core.state() == State::kRunning ||
          core.state() == State::kFinished || core.state() == State::kWaiting) {
        ASSERT_EQ(core.NextDeadline(), kNever);
      } else {
        ASSERT_NE(core.NextDeadline(), kNever);
      }
      if (stopped_at != kNever && core.state() != State::kFinished) {
        // Four seconds of grace at most, then each later phase has its own bound.
        ASSERT_LE(now, stopped_at + seconds(8) + 2 * kUnkillableAfter + kDrainLimit);
      }
    }
    if (core.state() == State::kStarting) continue;
    // Left alone after a stop, deadlines alone bring the end.
    if (core.state() != State::kFinished) {
      ASSERT_TRUE(give(StopAsked{seconds(1)}));
      for (int i = 0; i < 6 && core.state() != State::kFinished; ++i) {
        now = core.NextDeadline();
        note(core.OnDeadline(now));
      }
    }
    ASSERT_EQ(core.state(), State::kFinished);
    ASSERT_EQ(finishes, 1);
  }
  EXPECT_GT(reached_running, 1000);  // else the test tries too little
}

}  // namespace
}  // namespace dtrain::shepherd
