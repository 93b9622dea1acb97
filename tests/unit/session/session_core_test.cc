// SPDX-License-Identifier: Apache-2.0
#include "agent/session/session_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace dtrain::session {
namespace {

using State = SessionCore::State;
using std::chrono::milliseconds;
using std::chrono::seconds;

template <typename T>
const T* Find(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if (const T* found = std::get_if<T>(&action)) return found;
  }
  return nullptr;
}

class SessionCoreTest : public ::testing::Test {
 protected:
  std::vector<Action> Ask(const v1::SessionRequest& request) {
    return core_.OnEvent(now_, Request{request});
  }
  std::vector<Action> HearTheEnd() { return core_.OnEvent(now_, JobEnded{}); }
  static v1::SessionRequest Hello() {
    v1::SessionRequest request;
    v1::Hello& hello = *request.mutable_hello();
    hello.set_protocol(1);
    hello.set_build("b");
    hello.set_job_id("job");
    hello.set_lease_ms(10'000);
    hello.set_grace_ms(5'000);
    return request;
  }
  void Join() { Ask(Hello()); }
  void Start() {
    Join();
    ASSERT_NE(Find<PrepareStart>(BeginJob(core_)), nullptr);
  }
  // The launcher's first frame for the shepherd, and that it lives.
  std::vector<Action> BeginJob(SessionCore& core) {
    auto actions = core.OnEvent(now_, JobFrame{true, true});
    core.OnEvent(now_, ShepherdAnswers{});
    return actions;
  }

  TimePoint now_{seconds(1000)};
  SessionCore core_{Identity{1, "b"}, now_};
};

TEST_F(SessionCoreTest, HelloIsWelcomed) {
  const auto actions = Ask(Hello());
  ASSERT_FALSE(actions.empty());
  EXPECT_TRUE(std::holds_alternative<OpenChannels>(actions[0])) << "before anything is said";
  EXPECT_NE(Find<SendWelcome>(actions), nullptr);
  EXPECT_EQ(core_.state(), State::kJoined);
}

TEST(SessionCoreNotice, IsAWarningToTheLauncher) {
  SessionCore core(Identity{1, "b", false, "another agent is here"}, TimePoint(seconds(1000)));
  v1::SessionRequest request;
  request.mutable_hello()->set_protocol(1);
  request.mutable_hello()->set_build("b");
  request.mutable_hello()->set_job_id("job");
  request.mutable_hello()->set_lease_ms(10'000);
  const auto actions = core.OnEvent(TimePoint(seconds(1000)), Request{request});
  ASSERT_NE(Find<SendEvent>(actions), nullptr);
  EXPECT_EQ(Find<SendEvent>(actions)->event.warning().message(), "another agent is here");
  EXPECT_NE(Find<SendWelcome>(actions), nullptr);
}

TEST_F(SessionCoreTest, AnotherBuildIsRefusedBeforeAnything) {  // B7
  v1::SessionRequest request = Hello();
  request.mutable_hello()->set_build("other");
  auto actions = Ask(request);
  ASSERT_NE(Find<End>(actions), nullptr);
  EXPECT_EQ(Find<End>(actions)->status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Find<End>(actions)->status.message()), ::testing::HasSubstr("other"));
  EXPECT_EQ(core_.state(), State::kEnded);
}

TEST_F(SessionCoreTest, AHelloWithoutLeaseOrJobIsRefused) {
  v1::SessionRequest request = Hello();
  request.mutable_hello()->set_lease_ms(0);
  EXPECT_NE(Find<End>(Ask(request)), nullptr);
}

// It is part of file names and of lines in the log.
TEST_F(SessionCoreTest, AHelloWithAnIdThatIsNoNameIsRefused) {
  v1::SessionRequest request = Hello();
  request.mutable_hello()->set_job_id("a\naudit: allowed");
  EXPECT_NE(Find<End>(Ask(request)), nullptr);
}

TEST_F(SessionCoreTest, RequestsBeforeHelloEndTheSession) {
  v1::SessionRequest request;
  request.mutable_look_again();
  EXPECT_NE(Find<End>(Ask(request)), nullptr);
}

// A launcher that reserves in a loop costs the agent's other users time.
TEST_F(SessionCoreTest, ReservesThatDoNotEndEndTheSession) {
  Join();
  v1::SessionRequest reserve;
  reserve.mutable_reserve()->add_gpu_uuids("GPU-0");
  v1::SessionRequest give_back;
  give_back.mutable_reserve();
  const auto ends = [&](const v1::SessionRequest& request) {
    return Find<End>(core_.OnEvent(now_, Request{request})) != nullptr;
  };
  // As one does that waits for a day, with a network that brings some at once.
  for (int second = 0; second < 100; ++second) {
    ASSERT_FALSE(ends(reserve)) << second;
    ASSERT_FALSE(ends(give_back));
    now_ += seconds(1);
  }
  for (int i = 0; i < 16; ++i) ASSERT_FALSE(ends(reserve)) << i;
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(ends(give_back)) << "it costs nothing";
  EXPECT_TRUE(ends(reserve));
}

TEST_F(SessionCoreTest, ProbesThatDoNotEndEndTheSession) {
  Join();
  v1::SessionRequest probe;
  probe.mutable_probe()->add_targets();
  const auto ends = [&] { return Find<End>(Ask(probe)) != nullptr; };
  // As of a launcher that waits for GPUs, where each time the first choice of addresses fails.
  for (int second = 0; second < 100; ++second) {
    ASSERT_FALSE(ends()) << second;
    ASSERT_FALSE(ends()) << second;
    now_ += seconds(1);
  }
  for (int i = 0; i < 8; ++i) ASSERT_FALSE(ends()) << i;
  EXPECT_TRUE(ends());
}

TEST_F(SessionCoreTest, AProbeOfMoreAddressesThanAnyLauncherHasTestedEndsTheSession) {
  Join();
  v1::SessionRequest probe;
  // All candidates of all other nodes that one node tests.
  for (int i = 0; i < 15 * 8; ++i) probe.mutable_probe()->add_targets();
  const auto actions = Ask(probe);
  ASSERT_NE(Find<RunProbe>(actions), nullptr);
  EXPECT_EQ(Find<RunProbe>(actions)->request.targets_size(), 120);
  while (probe.probe().targets_size() <= 256) probe.mutable_probe()->add_targets();
  const auto refused = Ask(probe);
  EXPECT_EQ(Find<RunProbe>(refused), nullptr);
  ASSERT_NE(Find<End>(refused), nullptr);
  EXPECT_THAT(std::string(Find<End>(refused)->status.message()), ::testing::HasSubstr("256"));
}

TEST_F(SessionCoreTest, WhatIsTheShepherdsEndsTheSessionOnTheAgentsChannel) {
  Start();
  v1::JobRequest stop;
  stop.mutable_stop();
  v1::SessionRequest request;
  ASSERT_TRUE(request.ParseFromString(stop.SerializeAsString()));
  EXPECT_NE(Find<End>(Ask(request)), nullptr);
}

TEST_F(SessionCoreTest, TheJobBeginsOnceWithTheFirstFrameThatIsKept) {  // O2: no rank twice
  Join();
  EXPECT_TRUE(core_.OnEvent(now_, JobFrame{false, true}).empty()) << "a beat";
  EXPECT_EQ(core_.state(), State::kJoined);
  EXPECT_NE(Find<PrepareStart>(BeginJob(core_)), nullptr);
  EXPECT_EQ(core_.state(), State::kRunning);
  EXPECT_TRUE(core_.OnEvent(now_, JobFrame{true, true}).empty());
}

TEST_F(SessionCoreTest, NoHelloWithinThirtySecondsEndsIt) {
  EXPECT_EQ(core_.NextDeadline(), now_ + seconds(30));
  now_ += seconds(30);
  EXPECT_NE(Find<End>(core_.OnEvent(now_, Tick{})), nullptr);
}

TEST_F(SessionCoreTest, HeartbeatsFlowFiveTimesALease) {
  Join();
  EXPECT_EQ(core_.NextDeadline(), now_ + seconds(2));
  now_ += seconds(2);
  auto actions = core_.OnEvent(now_, Tick{});
  ASSERT_NE(Find<SendEvent>(actions), nullptr);
  EXPECT_TRUE(Find<SendEvent>(actions)->event.has_heartbeat());
}

TEST_F(SessionCoreTest, SilenceForALeaseStopsTheWorkersWithTheGrace) {  // F2, G1
  Start();
  for (int i = 0; i < 5; ++i) {
    now_ += seconds(2);
    auto actions = core_.OnEvent(now_, Tick{});
    if (i < 4) {
      EXPECT_EQ(Find<SendShepherd>(actions), nullptr);
    } else {
      ASSERT_NE(Find<SendShepherd>(actions), nullptr);
      EXPECT_EQ(Find<SendShepherd>(actions)->request.end_job().grace_ms(), 5000u);
    }
  }
  EXPECT_EQ(core_.state(), State::kOrphaned);
}

// 30: an agent that was stopped, or got no CPU, has heard nothing and could not.
TEST_F(SessionCoreTest, OurOwnPauseIsNotTheLaunchersSilence) {
  Start();
  now_ += seconds(2);
  core_.OnEvent(now_, Tick{});
  now_ += seconds(60);
  EXPECT_EQ(Find<SendShepherd>(core_.OnEvent(now_, Tick{})), nullptr);
  EXPECT_EQ(core_.state(), State::kRunning);
  // Its silence before and after counts.
  for (const TimePoint end = now_ + seconds(4); now_ < end;) {
    now_ = core_.NextDeadline();
    EXPECT_EQ(Find<SendShepherd>(core_.OnEvent(now_, Tick{})), nullptr);
  }
  for (const TimePoint end = now_ + seconds(2); now_ < end && core_.state() == State::kRunning;) {
    now_ = core_.NextDeadline();
    core_.OnEvent(now_, Tick{});
  }
  EXPECT_EQ(core_.state(), State::kOrphaned);
}

TEST_F(SessionCoreTest, APauseIsCreditedOnce) {
  Start();
  now_ += seconds(60);
  for (int i = 0; i < 100; ++i) core_.OnEvent(now_, ShepherdAnswers{});
  EXPECT_LE(core_.NextDeadline(), now_ + seconds(10));
  core_.OnEvent(now_, Tick{});
  for (int i = 0; i < 5; ++i) {
    now_ += seconds(2);
    core_.OnEvent(now_, Tick{});
  }
  EXPECT_EQ(core_.state(), State::kOrphaned);
}

// K11, 30: a launcher on this machine, whose stream ends when it does, may be stopped for long.
TEST_F(SessionCoreTest, ALauncherOnThisMachineIsWatchedByItsStream) {
  v1::SessionRequest hello = Hello();
  hello.mutable_hello()->set_same_machine(true);
  Ask(hello);
  BeginJob(core_);
  int beats = 0;
  for (const TimePoint end = now_ + seconds(120); now_ < end;) {
    now_ = core_.NextDeadline();
    beats += Find<SendEvent>(core_.OnEvent(now_, Tick{})) != nullptr ? 1 : 0;
  }
  EXPECT_EQ(core_.state(), State::kRunning);
  EXPECT_EQ(beats, 60);
  core_.OnEvent(now_, LauncherGone{});
  EXPECT_EQ(core_.state(), State::kOrphaned);
}

TEST_F(SessionCoreTest, AHeartbeatRenewsTheLease) {
  Start();
  now_ += seconds(9);
  v1::SessionRequest beat;
  beat.mutable_heartbeat();
  Ask(beat);
  now_ += seconds(9);
  EXPECT_EQ(Find<SendShepherd>(core_.OnEvent(now_, Tick{})), nullptr);
  EXPECT_EQ(core_.state(), State::kRunning);
}

TEST_F(SessionCoreTest, ALauncherThatComesBackAfterItsLeaseIsNotHeard) {  // G3
  Start();
  core_.OnEvent(now_, LauncherGone{});
  v1::SessionRequest beat;
  beat.mutable_heartbeat();
  EXPECT_TRUE(Ask(beat).empty());
  EXPECT_EQ(core_.state(), State::kOrphaned);
  EXPECT_NE(Find<End>(HearTheEnd()), nullptr);
}

TEST_F(SessionCoreTest, LauncherGoneWithNothingRunningEndsAtOnce) {
  Join();
  EXPECT_NE(Find<End>(core_.OnEvent(now_, LauncherGone{})), nullptr);
}

TEST_F(SessionCoreTest, GoodbyeAfterFinishedEndsInOrder) {
  Start();
  HearTheEnd();
  EXPECT_EQ(core_.state(), State::kFinished);
  v1::SessionRequest bye;
  bye.mutable_goodbye();
  auto actions = Ask(bye);
  ASSERT_NE(Find<End>(actions), nullptr);
  EXPECT_TRUE(Find<End>(actions)->status.ok());
}

TEST_F(SessionCoreTest, GoodbyeWhileWorkersRunEndsThemFirst) {
  Start();
  v1::SessionRequest bye;
  bye.mutable_goodbye();
  auto actions = Ask(bye);
  EXPECT_EQ(Find<End>(actions), nullptr);
  ASSERT_NE(Find<SendShepherd>(actions), nullptr);
  EXPECT_TRUE(Find<SendShepherd>(actions)->request.has_end_job());
}

TEST_F(SessionCoreTest, ADeadShepherdIsReportedAndItsLeftoversKilled) {  // E11
  Start();
  auto actions = core_.OnEvent(now_, ShepherdGone{"killed by signal 9"});
  EXPECT_NE(Find<KillLeftovers>(actions), nullptr);
  EXPECT_EQ(Find<SendEvent>(actions), nullptr);
  EXPECT_EQ(core_.state(), State::kReaping);
  actions = core_.OnEvent(now_, LeftoversGone{});
  ASSERT_NE(Find<SendEvent>(actions), nullptr);
  EXPECT_EQ(Find<SendEvent>(actions)->event.failure().exit_code(), 203);
  EXPECT_EQ(core_.state(), State::kFinished);
}

TEST_F(SessionCoreTest, ALauncherThatGoesWhileADeadShepherdsWorkersAreKilledIsWaitedWith) {
  Start();
  core_.OnEvent(now_, ShepherdGone{"killed by signal 9"});
  EXPECT_TRUE(core_.OnEvent(now_, LauncherGone{}).empty());
  EXPECT_NE(Find<End>(core_.OnEvent(now_, LeftoversGone{})), nullptr);
}

// As one that is stopped, or waits for a file server that is down.
TEST_F(SessionCoreTest, AnOrphanedShepherdThatDoesNotFinishIsKilledAfterItsGrace) {
  struct Row {
    uint32_t grace_ms;
    bool launcher_is_silent;  // else its stream ends
    bool told_again;          // it says goodbye, or is silent, once more
  };
  for (const Row& row : {Row{0, false, false}, Row{5'000, false, true}, Row{5'000, true, false},
                         Row{90'000, true, true}}) {
    SessionCore core(Identity{1, "b"}, now_);
    v1::SessionRequest hello = Hello();
    hello.mutable_hello()->set_grace_ms(row.grace_ms);
    core.OnEvent(now_, Request{hello});
    BeginJob(core);
    if (row.launcher_is_silent) {
      // Once asked for, and at once: time in which we did not run would not count.
      const TimePoint silent = now_ + seconds(10);
      while (core.NextDeadline() <= silent) core.OnEvent(now_ = core.NextDeadline(), Tick{});
      now_ = silent;
    } else {
      core.OnEvent(now_, LauncherGone{});
    }
    ASSERT_EQ(core.state(), State::kOrphaned);
    const TimePoint until = now_ + milliseconds(row.grace_ms) + seconds(10);
    EXPECT_EQ(core.NextDeadline(), until);
    if (row.told_again) core.OnEvent(now_ += seconds(1), LauncherGone{});
    now_ = until - milliseconds(1);
    EXPECT_TRUE(core.OnEvent(now_, Tick{}).empty());
    now_ = until;
    EXPECT_NE(Find<KillLeftovers>(core.OnEvent(now_, Tick{})), nullptr);
    EXPECT_EQ(core.state(), State::kReaping);
    // The end of the one that was killed tells nothing new.
    EXPECT_TRUE(core.OnEvent(now_, ShepherdGone{"killed by signal 9"}).empty());
    EXPECT_NE(Find<End>(core.OnEvent(now_, LeftoversGone{})), nullptr);
  }
}

// While its launcher lives, too: a failed job ends at once, whatever holds one shepherd.
TEST_F(SessionCoreTest, AShepherdThatDoesNotAnswerAStopIsKilled) {
  Start();
  v1::SessionRequest stop;
  stop.mutable_end_job()->set_grace_ms(5'000);
  Ask(stop);
  v1::SessionRequest beat;
  beat.mutable_heartbeat();
  std::vector<Action> actions;
  for (const TimePoint until = now_ + seconds(15); now_ < until; now_ += seconds(1)) {
    Ask(beat);
    actions = core_.OnEvent(now_, Tick{});
    EXPECT_EQ(Find<KillLeftovers>(actions), nullptr);
  }
  EXPECT_NE(Find<KillLeftovers>(core_.OnEvent(now_, Tick{})), nullptr);
  actions = core_.OnEvent(now_, LeftoversGone{});
  ASSERT_NE(Find<SendEvent>(actions), nullptr);
  EXPECT_THAT(Find<SendEvent>(actions)->event.failure().message(),
              ::testing::HasSubstr("did not answer the request to end its workers"));
}

// D7: a worker that cannot be killed is its shepherd's to tell of, which takes it a minute.
TEST_F(SessionCoreTest, AShepherdThatAnswersMayTakeItsTime) {
  Start();
  v1::SessionRequest stop;
  stop.mutable_end_job()->set_grace_ms(5'000);
  Ask(stop);
  v1::SessionRequest beat;
  beat.mutable_heartbeat();
  core_.OnEvent(now_, ShepherdAnswers{});
  int asked = 0;
  for (int i = 0; i < 120; ++i) {
    now_ += seconds(1);
    Ask(beat);
    for (const Action& action : core_.OnEvent(now_, Tick{})) {
      const auto* down = std::get_if<SendShepherd>(&action);
      if (down == nullptr || !down->request.has_end_job()) continue;
      ++asked;
      core_.OnEvent(now_, ShepherdAnswers{});
    }
    ASSERT_EQ(core_.state(), State::kRunning);
  }
  EXPECT_EQ(asked, 11);
  for (int i = 0; i < 20; ++i) {
    now_ += seconds(1);
    Ask(beat);
    core_.OnEvent(now_, Tick{});
  }
  EXPECT_EQ(core_.state(), State::kReaping);
}

// The number is the launcher's, and the shepherd its user's.
TEST_F(SessionCoreTest, NobodyIsWaitedForLongerThanAnHour) {
  SessionCore core(Identity{1, "b"}, now_);
  v1::SessionRequest hello = Hello();
  hello.mutable_hello()->set_grace_ms(0xffffffff);
  core.OnEvent(now_, Request{hello});
  EXPECT_EQ(core.grace(), Duration::zero()) << "there is no worker yet";
  BeginJob(core);
  EXPECT_EQ(core.grace(), std::chrono::hours(1));
  core.OnEvent(now_, LauncherGone{});
  ASSERT_EQ(core.state(), State::kOrphaned);
  EXPECT_EQ(core.NextDeadline(), now_ + std::chrono::hours(1) + seconds(10));
}

TEST_F(SessionCoreTest, AShepherdThatDiesWhileOrphanedEndsTheSessionOnceAllIsKilled) {
  Start();
  core_.OnEvent(now_, LauncherGone{});
  EXPECT_NE(Find<KillLeftovers>(core_.OnEvent(now_, ShepherdGone{"x"})), nullptr);
  EXPECT_NE(Find<End>(core_.OnEvent(now_, LeftoversGone{})), nullptr);
}

TEST_F(SessionCoreTest, AShepherdThatEndsAfterItsWorkIsNoNews) {
  Start();
  HearTheEnd();
  EXPECT_TRUE(core_.OnEvent(now_, ShepherdGone{"exited with code 0"}).empty());
}

// 5.3: stopped, or it hangs. Its launcher and its agent see it; nobody waits for it.
TEST_F(SessionCoreTest, AShepherdThatAnswersNothingForALeaseIsKilledWithItsWorkers) {
  Start();
  std::vector<Action> actions;
  const TimePoint asked = now_;
  while (core_.state() == State::kRunning && now_ < asked + seconds(60)) {
    core_.OnEvent(now_, JobFrame{false, true});
    if (now_ == asked + seconds(10)) {
      ASSERT_NE(Find<SendShepherd>(actions), nullptr);
      EXPECT_EQ(Find<SendShepherd>(actions)->request.end_job().grace_ms(), 0u);
    } else {
      EXPECT_EQ(Find<SendShepherd>(actions), nullptr);
    }
    now_ += seconds(1);
    actions = core_.OnEvent(now_, Tick{});
  }
  EXPECT_EQ(now_, asked + seconds(20));
  EXPECT_NE(Find<KillLeftovers>(actions), nullptr);
}

TEST_F(SessionCoreTest, AShepherdThatAnswersNowAndThenIsLeftAlone) {
  Start();
  for (int i = 0; i < 100; ++i) {
    core_.OnEvent(now_, JobFrame{false, true});
    if (i % 9 == 0) core_.OnEvent(now_, ShepherdAnswers{});
    now_ += seconds(1);
    ASSERT_EQ(Find<SendShepherd>(core_.OnEvent(now_, Tick{})), nullptr);
  }
}

// A long message comes in many frames.
TEST_F(SessionCoreTest, AnyFrameRenewsTheLease) {
  Start();
  now_ += seconds(9);
  core_.OnEvent(now_, Heard{});
  now_ += seconds(9);
  core_.OnEvent(now_, JobFrame{true, false});
  now_ += seconds(9);
  EXPECT_EQ(Find<SendShepherd>(core_.OnEvent(now_, Tick{})), nullptr);
  EXPECT_EQ(core_.state(), State::kRunning);
}

TEST_F(SessionCoreTest, ALauncherThatBreaksARuleLosesItsSession) {
  Start();
  const auto actions = core_.OnEvent(now_, LauncherBroke{absl::DataLossError("a gap")});
  ASSERT_NE(Find<End>(actions), nullptr);
  EXPECT_EQ(Find<End>(actions)->status.message(), "a gap");
}

TEST_F(SessionCoreTest, NothingPassesToAShepherdThatIsToEnd) {
  EXPECT_FALSE(core_.passes());
  Start();
  EXPECT_TRUE(core_.passes());
  core_.OnEvent(now_, LauncherGone{});
  EXPECT_FALSE(core_.passes());
}

TEST_F(SessionCoreTest, RandomEventsNeverStartTwiceAndEndOnce) {
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    TimePoint now{seconds(1)};
    SessionCore core(Identity{1, "b"}, now);
    int starts = 0;
    int ends = 0;
    for (int step = 0; step < 40; ++step) {
      now += milliseconds(random() % 4000);
      std::vector<Action> actions;
      v1::SessionRequest request;
      switch (random() % 14) {
        case 0:
          actions = core.OnEvent(now, Request{Hello()});
          break;
        case 1:
          actions = core.OnEvent(now, JobFrame{random() % 2 == 0, true});
          break;
        case 2:
          request.mutable_goodbye();
          actions = core.OnEvent(now, Request{request});
          break;
        case 3:
          request.mutable_heartbeat();
          actions = core.OnEvent(now, Request{request});
          break;
        case 4:
          request.mutable_end_job();
          actions = core.OnEvent(now, Request{request});
          break;
        case 5:
          actions = core.OnEvent(now, LauncherGone{});
          break;
        case 6:
          actions = core.OnEvent(now, Reported{{"GPU-0"}, {4711}});
          break;
        case 7:
          actions = core.OnEvent(now, JobEnded{});
          break;
        case 11:
          actions = core.OnEvent(now, ShepherdAnswers{});
          break;
        case 12:
          if (random() % 8 > 0) break;
          actions = core.OnEvent(now, LauncherBroke{absl::DataLossError("x")});
          break;
        case 8:
          actions = core.OnEvent(now, ShepherdGone{"x"});
          break;
        case 9:
          actions = core.OnEvent(now, LeftoversGone{});
          break;
        case 10: {
          GpusSeen seen;
          seen.gpus.emplace_back().set_uuid("GPU-0");
          seen.gpus[0].set_memory_used_bytes(random() % 2 * (1 << 30));
          actions = core.OnEvent(now, seen);
          break;
        }
        default:
          actions = core.OnEvent(now, Tick{});
          break;
      }
      ASSERT_TRUE(ends == 0 || actions.empty());
      for (const Action& action : actions) {
        starts += std::holds_alternative<PrepareStart>(action) ? 1 : 0;
        ends += std::holds_alternative<End>(action) ? 1 : 0;
      }
      ASSERT_LE(starts, 1);
      ASSERT_LE(ends, 1);
      ASSERT_EQ(ends == 1, core.state() == State::kEnded);
    }
  }
}

}  // namespace
}  // namespace dtrain::session
