// SPDX-License-Identifier: Apache-2.0
// Sessions that outlive their streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "agent/session/session_core.h"
#include "common/base/outbox.h"

namespace dtrain::session {
namespace {

using State = SessionCore::State;
using std::chrono::seconds;
using ::testing::IsEmpty;
using ::testing::SizeIs;

template <typename T>
std::vector<T> All(const std::vector<Action>& actions) {
  std::vector<T> out;
  for (const Action& action : actions) {
    if (const T* found = std::get_if<T>(&action)) out.push_back(*found);
  }
  return out;
}

// The clock goes on as it does for a process that runs: with a Tick at each deadline. What the last
// one asks for.
std::vector<Action> Wait(SessionCore& core, TimePoint& now, Duration duration) {
  const TimePoint end = now + duration;
  std::vector<Action> last;
  while (core.NextDeadline() <= end) {
    now = std::max(now, core.NextDeadline());
    last = core.OnEvent(now, Tick{});
  }
  now = end;
  return last;
}

class ResumeTest : public ::testing::Test {
 protected:
  ResumeTest() {
    Ask(Hello());
    v1::SessionRequest start;
    start.mutable_start()->set_job_id("job");
    start.set_sequence(1);
    const auto sent = All<SendShepherd>(Ask(start));
    EXPECT_EQ(sent.at(0).request.sequence(), 1u);
  }
  static v1::SessionRequest Hello() {
    v1::SessionRequest request;
    v1::Hello& hello = *request.mutable_hello();
    hello.set_protocol(1);
    hello.set_build("b");
    hello.set_job_id("job");
    hello.set_incarnation("i");
    hello.set_lease_ms(10'000);
    return request;
  }
  std::vector<Action> Ask(const v1::SessionRequest& request) {
    return core_.OnEvent(now_, Request{request});
  }
  std::vector<Action> Hear(v1::ShepherdEvent event, uint64_t sequence = 0) {
    event.set_sequence(sequence);
    return core_.OnEvent(now_, FromShepherd{event});
  }
  std::vector<Action> ComeBack(uint64_t received) {
    v1::Hello hello = Hello().hello();
    hello.set_resume(true);
    hello.set_received(received);
    EXPECT_TRUE(core_.CanResume(hello));
    return core_.OnEvent(now_, Resumed{hello});
  }
  static v1::ShepherdEvent Exit() {
    v1::ShepherdEvent event;
    event.mutable_job()->mutable_exit()->set_exit_code(3);
    return event;
  }
  static v1::ShepherdEvent Finished() {
    v1::ShepherdEvent event;
    event.mutable_job()->mutable_finished();
    return event;
  }

  TimePoint now_{seconds(1000)};
  SessionCore core_{Identity{1, "b", /*resumable=*/true}, now_};
};

TEST_F(ResumeTest, AStreamThatEndsStopsNothing) {
  EXPECT_THAT(core_.OnEvent(now_, LauncherGone{}), IsEmpty());
  EXPECT_EQ(core_.state(), State::kRunning);
  EXPECT_THAT(Wait(core_, now_, seconds(9)), IsEmpty());
}

TEST_F(ResumeTest, TheLeaseEndsTheWorkers) {
  core_.OnEvent(now_, LauncherGone{});
  const auto sent = All<SendShepherd>(Wait(core_, now_, seconds(10)));
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_TRUE(sent[0].request.job().has_stop());
  EXPECT_EQ(core_.state(), State::kOrphaned);
  EXPECT_FALSE(core_.CanResume(Hello().hello()));
  const auto last = Hear(Finished(), 2);
  EXPECT_TRUE(All<SendShepherd>(last).at(0).request.has_release());
  EXPECT_THAT(All<End>(last), SizeIs(1));
}

// ADR 14: a launcher that stands still, and whose stream therefore does, too.
class LauncherWaitTest : public ResumeTest {
 protected:
  LauncherWaitTest() {
    core_.emplace(Identity{1, "b", /*resumable=*/true, "", seconds(600)}, now_);
  }
  void Run() {
    v1::SessionRequest start;
    start.mutable_start()->set_job_id("job");
    start.set_sequence(1);
    core_->OnEvent(now_, Request{Hello()});
    core_->OnEvent(now_, Request{start});
  }
  static v1::ShepherdEvent Progress() {
    v1::ShepherdEvent event;
    event.mutable_job()->mutable_progress();
    return event;
  }
  std::optional<SessionCore> core_;
};

TEST_F(LauncherWaitTest, AJobGoesOnAndItsLauncherToo) {
  Run();
  Wait(*core_, now_, seconds(9));
  EXPECT_THAT(All<SendEvent>(core_->OnEvent(now_, FromShepherd{Progress()})), SizeIs(1));
  Wait(*core_, now_, seconds(590));
  EXPECT_EQ(core_->state(), State::kRunning);
  // What is only a state does not pile up meanwhile.
  EXPECT_THAT(All<SendEvent>(core_->OnEvent(now_, FromShepherd{Progress()})), IsEmpty());
  EXPECT_THAT(All<SendEvent>(core_->OnEvent(now_, FromShepherd{Exit()})), SizeIs(1));
  v1::SessionRequest beat;
  beat.mutable_heartbeat();
  core_->OnEvent(now_, Request{beat});
  EXPECT_THAT(All<SendEvent>(core_->OnEvent(now_, FromShepherd{Progress()})), SizeIs(1));
  Wait(*core_, now_, seconds(609));
  EXPECT_EQ(core_->state(), State::kRunning);
  Wait(*core_, now_, seconds(2));
  EXPECT_EQ(core_->state(), State::kOrphaned);
}

TEST_F(LauncherWaitTest, OneThatIsGoneHasItsLease) {
  Run();
  core_->OnEvent(now_, LauncherGone{});
  Wait(*core_, now_, seconds(9));
  EXPECT_EQ(core_->state(), State::kRunning);
  Wait(*core_, now_, seconds(1));
  EXPECT_EQ(core_->state(), State::kOrphaned);
}

TEST_F(LauncherWaitTest, OneWhoseConnectionBreaksMayComeBackWithinItsLease) {
  Run();
  Wait(*core_, now_, seconds(300));
  core_->OnEvent(now_, LauncherGone{});
  Wait(*core_, now_, seconds(9));
  EXPECT_EQ(core_->state(), State::kRunning);
  EXPECT_TRUE(core_->CanResume(Hello().hello()));
  Wait(*core_, now_, seconds(1));
  EXPECT_EQ(core_->state(), State::kOrphaned);
}

// GPUs that others wait for.
TEST_F(LauncherWaitTest, BeforeTheStartItHasItsLease) {
  core_->OnEvent(now_, Request{Hello()});
  Wait(*core_, now_, seconds(10));
  EXPECT_EQ(core_->state(), State::kEnded);
}

// It may say as much as it likes.
TEST_F(ResumeTest, WhatAShepherdHasNotNumberedIsNotKept) {
  v1::ShepherdEvent warning, failure;
  warning.mutable_job()->mutable_warning()->set_message("x");
  failure.mutable_job()->mutable_failure()->set_message("x");
  EXPECT_THAT(All<SendEvent>(Hear(warning)), SizeIs(1));
  core_.OnEvent(now_, LauncherGone{});
  for (const auto& event : {warning, failure}) EXPECT_THAT(All<SendEvent>(Hear(event)), IsEmpty());
  EXPECT_THAT(All<SendEvent>(ComeBack(0)), IsEmpty());
}

TEST_F(ResumeTest, WhoComesBackHearsWhatItMissed) {
  core_.OnEvent(now_, LauncherGone{});
  EXPECT_THAT(All<SendEvent>(Hear(Exit(), 5)), IsEmpty());  // the shepherd keeps it
  const auto actions = ComeBack(4);
  ASSERT_THAT(All<SendWelcome>(actions), SizeIs(1));
  EXPECT_TRUE(All<SendWelcome>(actions)[0].resumed);
  const auto down = All<SendShepherd>(actions);
  ASSERT_THAT(down, SizeIs(1));
  EXPECT_EQ(down[0].request.replay().after(), 4u);
  EXPECT_EQ(down[0].request.acknowledged(), 4u);
  const auto up = All<SendEvent>(Hear(Exit(), 5));
  ASSERT_THAT(up, SizeIs(1));
  EXPECT_EQ(up[0].event.sequence(), 5u);
  EXPECT_THAT(All<SendShepherd>(Wait(core_, now_, seconds(9))), IsEmpty());  // it began anew
}

TEST_F(ResumeTest, TheWelcomeTellsHowFarTheShepherdIs) {
  v1::ShepherdEvent event = Exit();
  event.set_received(7);
  Hear(event, 1);
  core_.OnEvent(now_, LauncherGone{});
  EXPECT_EQ(All<SendWelcome>(ComeBack(1)).at(0).received, 7u);
}

TEST_F(ResumeTest, WhatTheShepherdHasIsNotGivenToItAgain) {
  v1::ShepherdEvent event = Exit();
  event.set_received(2);
  Hear(event, 1);
  core_.OnEvent(now_, LauncherGone{});
  ComeBack(1);
  v1::SessionRequest again;
  again.mutable_start()->set_job_id("job");
  again.set_sequence(1);
  EXPECT_THAT(Ask(again), IsEmpty());
  again.mutable_stop();
  again.set_sequence(3);
  EXPECT_THAT(All<SendShepherd>(Ask(again)), SizeIs(1));
}

TEST_F(ResumeTest, AStartThatComesAgainBeforeTheShepherdAnsweredIsNoError) {
  core_.OnEvent(now_, LauncherGone{});
  ComeBack(0);
  v1::SessionRequest again;
  again.mutable_start()->set_job_id("job");
  again.set_sequence(1);
  EXPECT_THAT(Ask(again), IsEmpty());
  EXPECT_EQ(core_.state(), State::kRunning);
}

TEST_F(ResumeTest, AcknowledgementsGoDown) {
  v1::SessionRequest beat;
  beat.mutable_heartbeat();
  beat.set_received(6);
  EXPECT_EQ(All<SendShepherd>(Ask(beat)).at(0).request.acknowledged(), 6u);
  EXPECT_THAT(All<SendShepherd>(Ask(beat)), IsEmpty());  // nothing new
}

// Chunks of stdin and their answers leave no gap for a heartbeat. Neither end may keep them for
// one.
TEST_F(ResumeTest, AMillionMessagesWithoutAHeartbeatAreAcknowledged) {
  Outbox<v1::SessionRequest> launcher;
  Inbox of_launcher;  // the shepherd's
  Outbox<v1::ShepherdEvent> shepherd;
  Inbox of_shepherd;  // the launcher's
  launcher.Add({});   // the start
  ASSERT_TRUE(of_launcher.Take(1));
  size_t most = 0;
  for (int i = 0; i < 500'000; ++i) {
    v1::SessionRequest chunk;
    chunk.mutable_stdin();
    chunk.set_received(of_shepherd.last());
    for (const auto& down : All<SendShepherd>(Ask(launcher.Add(std::move(chunk))))) {
      shepherd.Acknowledge(down.request.acknowledged());
      of_launcher.Take(down.request.sequence());
    }
    v1::ShepherdEvent taken;
    taken.mutable_job()->mutable_stdin_taken();
    taken = shepherd.Add(std::move(taken));
    taken.set_received(of_launcher.last());
    for (const auto& up : All<SendEvent>(core_.OnEvent(now_, FromShepherd{taken}))) {
      ASSERT_FALSE(up.event.has_heartbeat());
      launcher.Acknowledge(up.event.received());
      of_shepherd.Take(up.event.sequence());
    }
    most = std::max({most, launcher.kept().size(), shepherd.kept().size()});
  }
  EXPECT_LE(most, 2u);
}

TEST_F(ResumeTest, TheEndIsToldAgainToWhoMissedIt) {
  const auto first = All<SendEvent>(Hear(Finished(), 9));
  ASSERT_THAT(first, SizeIs(2));
  EXPECT_EQ(first[0].event.sequence(), 9u);
  EXPECT_TRUE(first[1].event.has_released());
  core_.OnEvent(now_, LauncherGone{});
  EXPECT_EQ(core_.state(), State::kFinished);
  const auto back = All<SendEvent>(ComeBack(8));
  ASSERT_THAT(back, SizeIs(2));
  EXPECT_EQ(back[0].event.sequence(), 9u);
  EXPECT_TRUE(back[1].event.has_released());
  EXPECT_EQ(All<SendEvent>(Hear(Finished(), 9)).at(0).event.sequence(), 9u);
  v1::SessionRequest goodbye;
  goodbye.mutable_goodbye();
  const auto last = Ask(goodbye);
  EXPECT_TRUE(All<SendShepherd>(last).at(0).request.has_release());
  EXPECT_THAT(All<End>(last), SizeIs(1));
}

TEST_F(ResumeTest, ADeadShepherdIsToldToWhoComesBack) {
  core_.OnEvent(now_, LauncherGone{});
  core_.OnEvent(now_, ShepherdGone{"killed by signal 9"});
  EXPECT_THAT(All<SendEvent>(core_.OnEvent(now_, LeftoversGone{})), IsEmpty());
  const auto up = All<SendEvent>(ComeBack(0));
  ASSERT_THAT(up, SizeIs(3));
  EXPECT_EQ(up[0].event.failure().kind(), v1::NodeFailure::KIND_SHEPHERD_LOST);
  EXPECT_TRUE(up[1].event.has_finished());
  EXPECT_TRUE(up[2].event.has_released());
}

// The stream may break before it has carried them.
TEST_F(ResumeTest, OwnWordsAreSaidToEveryoneWhoComesBack) {
  core_.OnEvent(now_, ShepherdGone{"killed by signal 9"});
  const auto told = All<SendEvent>(core_.OnEvent(now_, LeftoversGone{}));
  ASSERT_THAT(told, SizeIs(3));
  EXPECT_GT(told[0].event.sequence(), uint64_t{1} << 62);
  for (int i = 0; i < 2; ++i) {
    core_.OnEvent(now_, LauncherGone{});
    const auto again = All<SendEvent>(ComeBack(0));
    ASSERT_THAT(again, SizeIs(3)) << i;
    EXPECT_EQ(again[0].event.sequence(), told[0].event.sequence());
    EXPECT_TRUE(again[1].event.has_finished());
    EXPECT_TRUE(again[2].event.has_released());
    EXPECT_EQ(again[2].event.sequence(), 0u) << "an agent after this one tells it, too";
  }
}

// Nothing of a session that ended early may run on without an agent.
TEST_F(ResumeTest, ASessionThatEndsInTheMiddleReleasesItsShepherd) {
  v1::SessionRequest illegal = Hello();
  const auto actions = Ask(illegal);
  EXPECT_THAT(All<End>(actions), SizeIs(1));
  EXPECT_TRUE(All<SendShepherd>(actions).at(0).request.has_release());
}

TEST_F(ResumeTest, AHugeHelloIsRefused) {
  SessionCore core(Identity{1, "b", true}, now_);
  v1::SessionRequest request = Hello();
  request.mutable_hello()->set_probe_token(std::string(5000, 'x'));
  EXPECT_THAT(All<End>(core.OnEvent(now_, Request{request})), SizeIs(1));
}

TEST_F(ResumeTest, OnlyItsOwnLauncherMayComeBack) {
  for (int field = 0; field < 4; ++field) {
    v1::Hello hello = Hello().hello();
    if (field == 0) hello.set_job_id("other");
    if (field == 1) hello.set_attempt(1);
    if (field == 2) hello.set_incarnation("other");
    if (field == 3) hello.set_protocol(2);
    EXPECT_FALSE(core_.CanResume(hello)) << field;
  }
}

// The start itself may be what was lost.
TEST_F(ResumeTest, BeforeTheStartTheLauncherMayComeBackToo) {
  SessionCore core(Identity{1, "b", true}, now_);
  core.OnEvent(now_, Request{Hello()});
  EXPECT_THAT(core.OnEvent(now_, LauncherGone{}), IsEmpty());
  Wait(core, now_, seconds(9));
  ASSERT_TRUE(core.CanResume(Hello().hello()));
  const auto actions = core.OnEvent(now_, Resumed{Hello().hello()});
  EXPECT_TRUE(All<SendWelcome>(actions).at(0).resumed);
  EXPECT_THAT(All<SendShepherd>(actions), IsEmpty()) << "a shepherd without a part has no words";
  v1::SessionRequest start;
  start.mutable_start()->set_job_id("job");
  start.set_sequence(1);
  EXPECT_THAT(All<SendShepherd>(core.OnEvent(now_, Request{start})), SizeIs(1));
  EXPECT_EQ(core.state(), State::kRunning);
}

TEST_F(ResumeTest, BeforeTheStartTheLauncherIsAwaitedForItsLease) {
  SessionCore core(Identity{1, "b", true}, now_);
  EXPECT_FALSE(core.CanResume(Hello().hello())) << "before the Hello";
  core.OnEvent(now_, Request{Hello()});
  core.OnEvent(now_, LauncherGone{});
  Wait(core, now_, seconds(10));
  EXPECT_EQ(core.state(), State::kEnded);
}

TEST_F(ResumeTest, AnAdoptedJobWaitsForItsLauncher) {
  v1::Account account;
  *account.mutable_kept()->mutable_hello() = Hello().hello();
  account.mutable_part()->set_job_id("job");
  SessionCore core(Identity{1, "b", true}, now_, account, /*taken=*/3);
  EXPECT_EQ(core.state(), State::kRunning);
  EXPECT_TRUE(core.CanResume(Hello().hello()));
  EXPECT_TRUE(All<SendShepherd>(Wait(core, now_, seconds(10))).at(0).request.job().has_stop());
}

// Somebody with the right to it ends a job. Its launcher must know before it sees workers end.
TEST_F(ResumeTest, AStopByAnotherIsToldBeforeItIsDone) {
  const std::vector<Action> actions = core_.OnEvent(now_, StopAsked{"stopped by alice"});
  ASSERT_THAT(actions, SizeIs(2));
  const v1::NodeFailure& failure = std::get<SendEvent>(actions[0]).event.failure();
  EXPECT_EQ(failure.message(), "stopped by alice");
  EXPECT_EQ(failure.exit_code(), 143);
  EXPECT_TRUE(std::get<SendShepherd>(actions[1]).request.job().has_stop());
  EXPECT_EQ(std::get<SendShepherd>(actions[1]).request.sequence(), 0u);
}

TEST_F(ResumeTest, ALauncherThatWasAwayHearsWhoStoppedItsJob) {
  core_.OnEvent(now_, LauncherGone{});
  EXPECT_TRUE(core_.away());
  const std::vector<Action> actions = core_.OnEvent(now_, StopAsked{"stopped by alice"});
  EXPECT_THAT(All<SendEvent>(actions), IsEmpty());
  EXPECT_THAT(All<SendShepherd>(actions), SizeIs(1));
  const std::vector<SendEvent> told = All<SendEvent>(ComeBack(0));
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].event.failure().message(), "stopped by alice");
  EXPECT_FALSE(core_.away());
}

TEST_F(ResumeTest, AJobThatIsOverIsNotStopped) {
  Hear(Finished(), 1);
  EXPECT_EQ(core_.state(), State::kFinished);
  EXPECT_THAT(core_.OnEvent(now_, StopAsked{"late"}), IsEmpty());
}

}  // namespace
}  // namespace dtrain::session
