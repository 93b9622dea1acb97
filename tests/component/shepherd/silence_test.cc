// SPDX-License-Identifier: Apache-2.0
// Launchers that say nothing, whatever their agent says or does.
#include "tests/component/shepherd/harness.h"

namespace dtrain::shepherd {
namespace {

using std::chrono::milliseconds;

class SilenceTest : public ShepherdTest {
 protected:
  void Run(milliseconds most_silence) {
    most_silence_ = most_silence;
    Start(Shell(1, "echo ready; exec sleep 600"));
    ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  }
  void Beat() {
    v1::JobRequest beat;
    beat.mutable_heartbeat();
    ASSERT_TRUE(launcher_->SendUnkept(0, link::SharedBytes(beat.SerializeAsString())).ok());
    carrier_->Pump();
  }
  void BeatFor(Duration duration) {
    for (const TimePoint end = Clock::now() + duration; Clock::now() < end;) {
      Beat();
      (void)Until([] { return false; }, milliseconds(50));
    }
  }
};

TEST_F(SilenceTest, TheWorkersEndAndTheLauncherIsTold) {
  Run(milliseconds(400));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].signal(), SIGTERM);
  EXPECT_TRUE(exits_[0].told_to_stop());
}

TEST_F(SilenceTest, BeatsAreAnsweredAndKeepThemRunning) {
  Run(milliseconds(400));
  BeatFor(milliseconds(1200));
  EXPECT_TRUE(exits_.empty());
  EXPECT_GT(beats_, 0);
  ASSERT_TRUE(UntilFinished()) << "and then it is silent";
}

TEST_F(SilenceTest, WhoseSilenceDoesNotCountMayBeSilent) {
  Run(milliseconds(0));
  (void)Until([] { return false; }, milliseconds(600));
  EXPECT_TRUE(exits_.empty());
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

// Time in which the shepherd is stopped is not the launcher's silence.
TEST_F(SilenceTest, AShepherdThatStoodStillHearsFirstWhatWasSaidMeanwhile) {
  Run(milliseconds(400));
  ASSERT_TRUE(os::SendSignal(shepherd_.get(), SIGSTOP).ok());
  BeatFor(milliseconds(900));
  ASSERT_TRUE(os::SendSignal(shepherd_.get(), SIGCONT).ok());
  const int before = beats_;
  BeatFor(milliseconds(600));
  EXPECT_TRUE(exits_.empty());
  EXPECT_GT(beats_, before);
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

// Its agent is there, and lets the shepherd know that the launcher is gone: it may come back.
TEST_F(SilenceTest, ALauncherWhoseConnectionEndedHasThatLongAgain) {
  Run(milliseconds(1000));
  (void)Until([] { return false; }, milliseconds(500));
  link_due_.Cancel();
  carrier_.reset();
  launcher_->Close();
  (void)Until([] { return false; }, milliseconds(700));
  AttachLauncher();
  ASSERT_TRUE(Until([this] { return launcher_->state() == link::LinkCore::State::kUp; }));
  BeatFor(milliseconds(200));
  EXPECT_TRUE(exits_.empty());
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

// An agent that is stopped brings nobody back, and closes nothing.
TEST_F(SilenceTest, OneThatIsGoneForGoodEndsThem) {
  Keep(std::chrono::hours(1));
  Run(milliseconds(400));
  auto workers = WorkerPidfds();
  for (auto& worker : workers) EXPECT_TRUE(Gone(worker.get()));
  ASSERT_TRUE(Until([this] { return ended_; }));
  Release();
  EXPECT_TRUE(ShepherdExited());
}

// Nothing is read here from the end of the workers on, as by an agent that is stopped.
TEST_F(SilenceTest, NorIsAnAgentAwaitedForEverThatReadsNoOutput) {
  takes_logs_ = false;
  Run(milliseconds(400));
  for (auto& worker : WorkerPidfds()) EXPECT_TRUE(Gone(worker.get()));
  EXPECT_TRUE(ShepherdExited());
}

TEST_F(SilenceTest, NorIsTheReleaseByOneThatDoesNotRead) {
  Keep(std::chrono::hours(1));
  Run(milliseconds(400));
  for (auto& worker : WorkerPidfds()) EXPECT_TRUE(Gone(worker.get()));
  EXPECT_TRUE(ShepherdExited());
}

TEST_F(SilenceTest, ALauncherThatIsBackGetsAllTheOutput) {
  takes_logs_ = false;
  Run(milliseconds(1000));
  for (auto& worker : WorkerPidfds()) EXPECT_TRUE(Gone(worker.get()));
  hears_ = [] { return false; };
  BeatFor(milliseconds(1500));
  EXPECT_FALSE(Gone(shepherd_.get(), milliseconds(0)));
  hears_ = nullptr;
  AttachLauncher();
  takes_logs_ = true;
  TakeLogs();
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "ready\n");
}

TEST_F(SilenceTest, AnAgentThatReadsMayReleaseItLater) {
  Keep(std::chrono::hours(1));
  Run(milliseconds(1000));
  for (auto& worker : WorkerPidfds()) EXPECT_TRUE(Gone(worker.get()));
  ASSERT_TRUE(Until([this] { return finished_; }));
  for (int i = 0; i < 3; ++i) {
    ReadLogs();
    (void)Until([] { return false; }, milliseconds(500));
  }
  EXPECT_FALSE(Gone(shepherd_.get(), milliseconds(0)));
  Release();
  EXPECT_TRUE(ShepherdExited());
}

}  // namespace
}  // namespace dtrain::shepherd
