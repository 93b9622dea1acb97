// SPDX-License-Identifier: Apache-2.0
// Sessions that outlive their streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "agent/session/session_core.h"
#include "common/base/node_rank.h"
#include "common/base/patience.h"

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
    EXPECT_THAT(All<PrepareStart>(core_.OnEvent(now_, JobFrame{true, false})), SizeIs(1));
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
  std::vector<Action> ComeBack() {
    v1::Hello hello = Hello().hello();
    hello.set_resume(true);
    EXPECT_TRUE(core_.CanResume(hello));
    return core_.OnEvent(now_, Resumed{hello});
  }

  TimePoint now_{seconds(1000)};
  SessionCore core_{Identity{1, "b", /*resumable=*/true}, now_};
};

// With a lease of days.
void Join(SessionCore& core, TimePoint now) {
  v1::SessionRequest request;
  request.mutable_hello()->set_protocol(1);
  request.mutable_hello()->set_build("b");
  request.mutable_hello()->set_job_id("job");
  request.mutable_hello()->set_lease_ms(7 * 24 * 3'600'000u);
  core.OnEvent(now, Request{request});
}

TEST(JoiningTest, ALauncherDoesNotAskForPortsAgainAtOnce) {
  TimePoint now{seconds(1000)};
  SessionCore core(Identity{1, "b", /*resumable=*/true}, now);
  Join(core, now);
  v1::SessionRequest ports;
  ports.mutable_hold_ports()->set_count(1024);
  EXPECT_THAT(All<HoldPorts>(core.OnEvent(now, Request{ports})), SizeIs(1));
  now += seconds(1);  // It has waited for GPUs.
  EXPECT_THAT(All<HoldPorts>(core.OnEvent(now, Request{ports})), SizeIs(1));
  EXPECT_THAT(All<HoldPorts>(core.OnEvent(now, Request{ports})), IsEmpty());
  EXPECT_EQ(core.state(), State::kEnded);
}

TEST(JoiningTest, LooksThatAreAskedForAtOnceAreOne) {
  TimePoint now{seconds(1000)};
  SessionCore core(Identity{1, "b", /*resumable=*/true}, now);
  Join(core, now);
  v1::SessionRequest look;
  look.mutable_look_again();
  EXPECT_THAT(All<SendInventory>(core.OnEvent(now, Request{look})), SizeIs(1));
  for (int i = 0; i < 100; ++i) {
    EXPECT_THAT(All<SendInventory>(core.OnEvent(now, Request{look})), IsEmpty());
  }
  now = core.NextDeadline();
  EXPECT_THAT(All<SendInventory>(core.OnEvent(now, Tick{})), SizeIs(1));
  now += seconds(1);
  EXPECT_THAT(All<SendInventory>(core.OnEvent(now, Tick{})), IsEmpty());
  EXPECT_THAT(All<SendInventory>(core.OnEvent(now, Request{look})), SizeIs(1));
}

TEST(JoiningTest, WhatHasNotBegunIsNotHeldForALauncherThatIsGone) {
  for (const bool is_spare : {false, true}) {
    TimePoint now{seconds(1000)};
    SessionCore core(Identity{1, "b", /*resumable=*/true}, now);
    Join(core, now);
    v1::SessionRequest reserve;
    reserve.mutable_reserve()->set_node_rank(is_spare ? kNoNodeRank : 0);
    core.OnEvent(now, Request{reserve});
    core.OnEvent(now, LauncherGone{});
    Wait(core, now, seconds(is_spare ? 599 : 59));
    EXPECT_EQ(core.state(), State::kJoined);
    Wait(core, now, seconds(1));
    EXPECT_EQ(core.state(), State::kEnded);
  }
}

// Whatever its launcher does.
TEST(JoiningTest, WhatHasNotBegunIsOverSoonWhenItIsStopped) {
  TimePoint now{seconds(1000)};
  SessionCore core(Identity{1, "b", /*resumable=*/true}, now);
  Join(core, now);
  EXPECT_THAT(All<SendEvent>(core.OnEvent(now, StopAsked{"by root"})), SizeIs(1));
  Wait(core, now, seconds(4));
  core.OnEvent(now, Heard{});
  EXPECT_EQ(core.state(), State::kJoined);
  Wait(core, now, seconds(1));
  EXPECT_EQ(core.state(), State::kEnded);
}

TEST_F(ResumeTest, AStreamThatEndsStopsNothing) {
  EXPECT_THAT(core_.OnEvent(now_, LauncherGone{}), IsEmpty());
  EXPECT_EQ(core_.state(), State::kRunning);
  EXPECT_THAT(Wait(core_, now_, seconds(9)), IsEmpty());
}

TEST_F(ResumeTest, TheLeaseEndsTheWorkers) {
  core_.OnEvent(now_, LauncherGone{});
  const auto sent = All<SendShepherd>(Wait(core_, now_, seconds(10)));
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_TRUE(sent[0].request.has_end_job());
  EXPECT_EQ(core_.state(), State::kOrphaned);
  EXPECT_FALSE(core_.CanResume(Hello().hello()));
  const auto last = core_.OnEvent(now_, JobEnded{});
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
    core_->OnEvent(now_, Request{Hello()});
    core_->OnEvent(now_, JobFrame{true, false});
  }
  std::optional<SessionCore> core_;
};

TEST_F(LauncherWaitTest, AJobGoesOnAndItsLauncherToo) {
  Run();
  Wait(*core_, now_, seconds(9));
  Wait(*core_, now_, seconds(590));
  EXPECT_EQ(core_->state(), State::kRunning);
  v1::SessionRequest beat;
  beat.mutable_heartbeat();
  core_->OnEvent(now_, Request{beat});
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

TEST_F(ResumeTest, WhoComesBackGoesOnWhereItWas) {
  core_.OnEvent(now_, LauncherGone{});
  EXPECT_TRUE(core_.away());
  const auto actions = ComeBack();
  ASSERT_THAT(actions, SizeIs(1)) << "the channels know what is to be said again";
  EXPECT_TRUE(std::holds_alternative<OpenChannels>(actions[0]));
  EXPECT_FALSE(core_.away());
  EXPECT_THAT(All<SendShepherd>(Wait(core_, now_, seconds(9))), IsEmpty());  // it began anew
}

TEST_F(ResumeTest, NoBeatsForALauncherThatIsAway) {
  core_.OnEvent(now_, LauncherGone{});
  for (int i = 0; i < 4; ++i) EXPECT_THAT(Wait(core_, now_, seconds(2)), IsEmpty());
  ComeBack();
  const auto beats = All<SendEvent>(Wait(core_, now_, seconds(2)));
  ASSERT_THAT(beats, SizeIs(1));
  EXPECT_TRUE(beats[0].event.has_heartbeat());
}

TEST_F(ResumeTest, TheEndIsToldThoughNobodyIsThere) {
  core_.OnEvent(now_, LauncherGone{});
  const auto told = All<SendEvent>(core_.OnEvent(now_, JobEnded{}));
  ASSERT_THAT(told, SizeIs(1)) << "the channel keeps it";
  EXPECT_TRUE(told[0].event.has_released());
  EXPECT_EQ(core_.state(), State::kFinished);
  ComeBack();
  v1::SessionRequest goodbye;
  goodbye.mutable_goodbye();
  const auto last = Ask(goodbye);
  EXPECT_TRUE(All<SendShepherd>(last).at(0).request.has_release());
  EXPECT_THAT(All<End>(last), SizeIs(1));
}

TEST_F(ResumeTest, ADeadShepherdIsToldThoughNobodyIsThere) {
  core_.OnEvent(now_, LauncherGone{});
  core_.OnEvent(now_, ShepherdGone{"killed by signal 9"});
  const auto up = All<SendEvent>(core_.OnEvent(now_, LeftoversGone{}));
  ASSERT_THAT(up, SizeIs(3));
  EXPECT_EQ(up[0].event.failure().kind(), v1::NodeFailure::KIND_SHEPHERD_LOST);
  EXPECT_TRUE(up[1].event.has_finished());
  EXPECT_TRUE(up[2].event.has_released());
  EXPECT_THAT(All<SendEvent>(ComeBack()), IsEmpty());
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
  EXPECT_THAT(All<OpenChannels>(actions), SizeIs(1));
  EXPECT_THAT(All<SendWelcome>(actions), IsEmpty());
  EXPECT_THAT(All<PrepareStart>(core.OnEvent(now_, JobFrame{true, true})), SizeIs(1));
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
  SessionCore core(Identity{1, "b", true}, now_, account, {});
  EXPECT_EQ(core.state(), State::kRunning);
  EXPECT_TRUE(core.CanResume(Hello().hello()));
  EXPECT_TRUE(All<SendShepherd>(Wait(core, now_, seconds(10))).at(0).request.has_end_job());
}

// It is not to be asked while nobody hears its answers.
TEST_F(ResumeTest, AShepherdOwesNoAnswerToALauncherThatIsAway) {
  core_.OnEvent(now_, JobFrame{false, true});
  Wait(core_, now_, seconds(5));
  core_.OnEvent(now_, LauncherGone{});
  Wait(core_, now_, seconds(4));
  ComeBack();
  EXPECT_THAT(All<SendShepherd>(Wait(core_, now_, seconds(9))), IsEmpty());
}

TEST_F(ResumeTest, AShepherdIsToldHowLongItsLauncherMayBeSilent) {
  EXPECT_EQ(core_.most_silence(), seconds(10));
  SessionCore child(Identity{1, "b"}, now_);
  v1::SessionRequest hello = Hello();
  hello.mutable_hello()->set_same_machine(true);
  child.OnEvent(now_, Request{hello});
  EXPECT_EQ(child.most_silence(), Duration::zero()) << "its stream counts";
}

// ---- a launcher that takes the job over ----

v1::Hello Successor(uint64_t generation) {
  v1::Hello hello;
  hello.set_protocol(1);
  hello.set_job_id("job");
  hello.set_incarnation("i");
  hello.set_lease_ms(10'000);
  hello.set_resume(true);
  hello.set_generation(generation);
  hello.set_launcher("pid 2 on b");
  return hello;
}

TEST_F(ResumeTest, AnotherLauncherIsToldAllAgainAndTheNextAgentWhoItIs) {
  core_.OnEvent(now_, LauncherGone{});
  const v1::Hello hello = Successor(2);
  ASSERT_TRUE(core_.CanResume(hello));
  ASSERT_TRUE(core_.Outranks(hello));
  const auto actions = core_.OnEvent(now_, TakenOver{hello});
  ASSERT_THAT(actions, SizeIs(3));
  const v1::Hello& kept = std::get<SendShepherd>(actions[0]).request.keep_running().hello();
  EXPECT_EQ(kept.generation(), 2u);
  EXPECT_EQ(kept.launcher(), "pid 2 on b");
  EXPECT_EQ(kept.lease_ms(), 10'000u) << "the rest is the first one's";
  EXPECT_TRUE(std::get<OpenChannels>(actions[1]).anew);
  EXPECT_TRUE(std::holds_alternative<TellAgain>(actions[2]));
  EXPECT_FALSE(core_.away());
  EXPECT_EQ(core_.hello().generation(), 2u);
  EXPECT_FALSE(core_.Outranks(hello)) << "it comes back";
  EXPECT_FALSE(core_.Outranks(Successor(1)));
}

TEST_F(ResumeTest, BeforeTheStartNoShepherdIsToldOfAnother) {
  SessionCore core(Identity{1, "b", true}, now_);
  core.OnEvent(now_, Request{Hello()});
  const auto actions = core.OnEvent(now_, TakenOver{Successor(2)});
  EXPECT_THAT(All<SendShepherd>(actions), IsEmpty());
  EXPECT_THAT(All<TellAgain>(actions), SizeIs(1));
}

TEST_F(ResumeTest, AShepherdOwesAnotherLauncherNoAnswerThatItsPredecessorAskedFor) {
  core_.OnEvent(now_, JobFrame{false, true});
  Wait(core_, now_, seconds(5));
  core_.OnEvent(now_, TakenOver{Successor(2)});
  EXPECT_THAT(All<SendShepherd>(Wait(core_, now_, seconds(9))), IsEmpty());
}

TEST_F(ResumeTest, WhatALauncherCallsItselfHasABound) {
  v1::Hello hello = Successor(2);
  hello.set_launcher(std::string(100'000, 'x'));
  core_.OnEvent(now_, TakenOver{hello});
  EXPECT_LT(core_.hello().ByteSizeLong(), 1000u);
}

// ---- detached jobs ----

class AwayTest : public ::testing::Test {
 protected:
  explicit AwayTest(uint32_t away_ms = 60'000) {
    v1::SessionRequest request;
    *request.mutable_hello() = Successor(1);
    request.mutable_hello()->set_build("b");
    request.mutable_hello()->clear_resume();
    request.mutable_hello()->set_away_ms(away_ms);
    request.mutable_hello()->set_grace_ms(5'000);
    core_.OnEvent(now_, Request{request});
    core_.OnEvent(now_, JobFrame{true, false});
  }
  TimePoint now_{seconds(1000)};
  SessionCore core_{Identity{1, "b", /*resumable=*/true}, now_};
};

TEST_F(AwayTest, WorkersRunOnForLongerThanTheLease) {
  EXPECT_EQ(core_.most_silence(), seconds(60));
  core_.OnEvent(now_, LauncherGone{});
  EXPECT_THAT(Wait(core_, now_, seconds(59)), IsEmpty());
  EXPECT_EQ(core_.state(), State::kRunning);
  const auto actions = Wait(core_, now_, seconds(1));
  EXPECT_EQ(All<SendEvent>(actions).at(0).event.failure().exit_code(), 202);
  EXPECT_TRUE(All<SendShepherd>(actions).at(0).request.has_end_job());
}

TEST_F(AwayTest, ALauncherThatIsSilentHasAsLong) {
  Wait(core_, now_, seconds(59));
  core_.OnEvent(now_, Heard{});
  Wait(core_, now_, seconds(59));
  EXPECT_EQ(core_.state(), State::kRunning);
  EXPECT_TRUE(All<SendShepherd>(Wait(core_, now_, seconds(1))).at(0).request.has_end_job());
}

TEST_F(AwayTest, HowItEndedIsKeptForADay) {
  core_.OnEvent(now_, LauncherGone{});
  Wait(core_, now_, seconds(60));
  core_.OnEvent(now_, ShepherdAnswers{});
  core_.OnEvent(now_, JobEnded{});
  EXPECT_EQ(core_.state(), State::kFinished);
  Wait(core_, now_, seconds(23 * 3600));
  ASSERT_TRUE(core_.CanResume(Successor(2)));
  EXPECT_THAT(All<TellAgain>(core_.OnEvent(now_, TakenOver{Successor(2)})), SizeIs(1));
  core_.OnEvent(now_, LauncherGone{});
  Wait(core_, now_, seconds(25 * 3600));
  EXPECT_EQ(core_.state(), State::kEnded);
}

TEST_F(AwayTest, AShepherdThatDoesNotEndThemInTimeIsKilled) {
  core_.OnEvent(now_, LauncherGone{});
  Wait(core_, now_, seconds(60));
  core_.OnEvent(now_, ShepherdAnswers{});
  Wait(core_, now_, seconds(15));
  EXPECT_EQ(core_.state(), State::kReaping);
}

TEST_F(AwayTest, BeatsGoOnByTheLease) {
  const auto beats = All<SendEvent>(Wait(core_, now_, seconds(2)));
  ASSERT_THAT(beats, SizeIs(1));
  EXPECT_TRUE(beats[0].event.has_heartbeat());
}

TEST(PatienceTest, OfADetachedJobAloneAndWithinBounds) {
  v1::Hello hello;
  hello.set_lease_ms(10'000);
  hello.set_away_ms(60'000);
  EXPECT_EQ(PatienceOf(hello), seconds(10));
  hello.set_generation(1);
  EXPECT_EQ(PatienceOf(hello), seconds(60));
  hello.set_away_ms(0);
  EXPECT_EQ(PatienceOf(hello), seconds(10));
  hello.set_away_ms(~uint32_t{0});
  EXPECT_EQ(PatienceOf(hello), std::chrono::hours(30 * 24));
}

// Somebody with the right to it ends a job. Its launcher must know before it sees workers end.
TEST_F(ResumeTest, AStopByAnotherIsToldBeforeItIsDone) {
  const std::vector<Action> actions = core_.OnEvent(now_, StopAsked{"stopped by alice"});
  ASSERT_THAT(actions, SizeIs(2));
  const v1::NodeFailure& failure = std::get<SendEvent>(actions[0]).event.failure();
  EXPECT_EQ(failure.message(), "stopped by alice");
  EXPECT_EQ(failure.exit_code(), 143);
  EXPECT_TRUE(std::get<SendShepherd>(actions[1]).request.has_end_job());
}

// Likewise of a node that is to go away: nobody has asked for the job's end.
TEST_F(ResumeTest, ThatTheNodeLeavesIsToldBeforeWorkersEnd) {
  const std::vector<Action> actions = core_.OnEvent(now_, StopAsked{"we go", /*leaves=*/true});
  ASSERT_THAT(actions, SizeIs(2));
  const v1::NodeFailure& failure = std::get<SendEvent>(actions[0]).event.failure();
  EXPECT_EQ(failure.kind(), v1::NodeFailure::KIND_LEAVES);
  EXPECT_EQ(failure.exit_code(), 202);
  EXPECT_TRUE(std::get<SendShepherd>(actions[1]).request.has_end_job());
}

TEST_F(ResumeTest, ALauncherThatWasAwayHearsWhoStoppedItsJob) {
  core_.OnEvent(now_, LauncherGone{});
  EXPECT_TRUE(core_.away());
  const std::vector<Action> actions = core_.OnEvent(now_, StopAsked{"stopped by alice"});
  EXPECT_THAT(All<SendShepherd>(actions), SizeIs(1));
  const std::vector<SendEvent> told = All<SendEvent>(actions);
  ASSERT_THAT(told, SizeIs(1)) << "the channel keeps it";
  EXPECT_EQ(told[0].event.failure().message(), "stopped by alice");
}

// What is over here may go on elsewhere, or be followed by another attempt.
TEST_F(ResumeTest, ALauncherHearsOfAStopOfWhatIsOver) {
  core_.OnEvent(now_, JobEnded{});
  EXPECT_EQ(core_.state(), State::kFinished);
  const std::vector<Action> actions = core_.OnEvent(now_, StopAsked{"stopped by alice"});
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(std::get<SendEvent>(actions[0]).event.failure().exit_code(), 143);
}

TEST_F(ResumeTest, AJobThatIsOverIsNotStopped) {
  core_.OnEvent(now_, JobEnded{});
  core_.OnEvent(now_, LauncherGone{});
  EXPECT_THAT(core_.OnEvent(now_, StopAsked{"late"}), IsEmpty());
}

}  // namespace
}  // namespace dtrain::session
