// SPDX-License-Identifier: Apache-2.0
// A shepherd whose agent goes, and the next one that comes.
#include <fstream>

#include "tests/component/shepherd/harness.h"

namespace dtrain::shepherd {
namespace {

using std::chrono::milliseconds;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr milliseconds kLong{60000};

class AdoptionTest : public ShepherdTest {
 protected:
  AdoptionTest() {
    char name[] = "/tmp/dtrain-adoption-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~AdoptionTest() override { (void)!system(absl::StrCat("rm -rf ", directory_).c_str()); }
  // A worker waits for this with: until [ -e $DIR/go ]; do sleep 0.01; done
  void Go() { std::ofstream(absl::StrCat(directory_, "/go")) << "go"; }
  // To be called before Start: when the system goes down, the next agent has so long to come.
  void SetGoingDown(milliseconds limit) { limits_.going_down = limit; }
  v1::JobPart Script(int workers, const std::string& script) {
    return Shell(workers, absl::StrCat("wait_go() { until [ -e ", directory_,
                                       "/go ]; do sleep 0.01; done; }\n", script));
  }
  std::string directory_;
};

TEST_F(AdoptionTest, WorkersOutliveTheAgentAndTheNextHearsTheirEnd) {
  Keep(kLong);
  Start(Script(2, "echo before; wait_go; echo after; exit $((3 + RANK))"));
  ASSERT_TRUE(UntilStarted());
  ASSERT_TRUE(Until([&] { return Out(0) == "before\n" && Out(1) == "before\n"; }));
  const v1::Started started = *started_;
  auto workers = WorkerPidfds();
  Leave();
  Go();
  for (auto& worker : workers) ASSERT_TRUE(Gone(worker.get()));
  EXPECT_THAT(exits_, IsEmpty());

  ASSERT_TRUE(Adopt());
  EXPECT_EQ(account_->kept().hello().job_id(), job_id_);
  ASSERT_EQ(account_->report().job().ranks_size(), 2);
  EXPECT_EQ(account_->report().job().ranks(1).pid(), started.workers(1).pid());
  ASSERT_TRUE(Until([&] { return finished_; }));
  EXPECT_EQ(exits_[0].exit_code(), 3);
  EXPECT_EQ(exits_[1].exit_code(), 4);
  EXPECT_EQ(Out(0), "before\nafter\n");
  EXPECT_EQ(Out(1), "before\nafter\n");
  Release();
  EXPECT_TRUE(ShepherdExited());
}

TEST_F(AdoptionTest, WithoutAnotherAgentTheWorkersEndWithTheLease) {
  Keep(milliseconds(300));
  Start(Shell(2, "echo ready; while :; do sleep 1; done"));
  ASSERT_TRUE(UntilStarted());
  ASSERT_TRUE(Until([&] { return Out(0) == "ready\n" && Out(1) == "ready\n"; }));
  auto workers = WorkerPidfds();
  Leave();
  for (auto& worker : workers) EXPECT_TRUE(Gone(worker.get()));
  EXPECT_TRUE(ShepherdExited());
  EXPECT_FALSE(Adopt());
}

TEST_F(AdoptionTest, AFinishedShepherdWaitsForItsRelease) {
  Keep(kLong);
  hears_ = [] { return false; };
  Start(Shell(1, "exit 5"));
  ASSERT_TRUE(Until([&] { return ended_; }));
  Leave();
  hears_ = nullptr;
  ASSERT_TRUE(Adopt());
  EXPECT_TRUE(account_->finished());
  ASSERT_TRUE(Until([&] { return finished_; }));
  EXPECT_EQ(exits_[0].exit_code(), 5);
  Release();
  EXPECT_TRUE(ShepherdExited());
}

// As all processes are told when the machine goes down, which waits for them.
TEST_F(AdoptionTest, WhoIsToldToEndDoesNotWaitForTheLease) {
  Keep(kLong);
  SetGoingDown(milliseconds(200));
  Start(Shell(1, "echo ready; while :; do sleep 1; done"));
  ASSERT_TRUE(UntilStarted());
  ASSERT_TRUE(Until([&] { return Out(0) == "ready\n"; }));
  Leave();
  ASSERT_EQ(kill(shepherd_pid_, SIGTERM), 0);
  EXPECT_TRUE(ShepherdExited());
}

TEST_F(AdoptionTest, WhoIsToldToEndWhenAllIsOverDoesNotWaitForTheLease) {
  Keep(kLong);
  SetGoingDown(milliseconds(200));
  Start(Shell(1, "exit 5"));
  ASSERT_TRUE(Until([&] { return finished_; }));
  Leave();
  ASSERT_EQ(kill(shepherd_pid_, SIGTERM), 0);
  EXPECT_TRUE(ShepherdExited());
}

TEST_F(AdoptionTest, WhoIsToldAgainDoesNotWaitLonger) {
  Keep(kLong);
  SetGoingDown(milliseconds(1000));
  Start(Shell(1, "exit 5"));
  ASSERT_TRUE(Until([&] { return finished_; }));
  Leave();
  const TimePoint end = Clock::now() + kLimit;
  do {
    ASSERT_LT(Clock::now(), end);
    ASSERT_EQ(kill(shepherd_pid_, SIGTERM), 0);
  } while (!Gone(shepherd_.get(), milliseconds(100)));
  EXPECT_TRUE(ShepherdExited());
}

TEST_F(AdoptionTest, WhoIsToldToEndStillWaitsForAnAgentThatIsRestarted) {
  Keep(kLong);
  SetGoingDown(milliseconds(5000));
  Start(Shell(1, "echo ready; while :; do sleep 1; done"));
  ASSERT_TRUE(UntilStarted());
  ASSERT_TRUE(Until([&] { return Out(0) == "ready\n"; }));
  hears_ = [] { return false; };
  ASSERT_EQ(kill(shepherd_pid_, SIGTERM), 0);
  ASSERT_TRUE(Until([&] { return ended_; }));
  Leave();
  hears_ = nullptr;
  ASSERT_TRUE(Adopt());
  ASSERT_TRUE(Until([&] { return finished_; }));
  EXPECT_EQ(exits_[0].signal(), static_cast<uint32_t>(SIGTERM));
  Leave();
  EXPECT_TRUE(ShepherdExited());
}

TEST_F(AdoptionTest, AReleaseEndsWorkersThatStillRun) {
  Keep(kLong);
  Start(Shell(1, "echo ready; while :; do sleep 1; done"));
  ASSERT_TRUE(UntilStarted());
  ASSERT_TRUE(Until([&] { return Out(0) == "ready\n"; }));
  auto workers = WorkerPidfds();
  Release();
  EXPECT_TRUE(Gone(workers[0].get()));
  EXPECT_TRUE(ShepherdExited());
}

TEST_F(AdoptionTest, WhatWasHeardIsNotSaidAgain) {
  Keep(kLong);
  hears_ = [this] { return exits_.empty(); };
  Start(Shell(1, "exit 5"));
  ASSERT_TRUE(Until([&] { return ended_ && !exits_.empty(); }));
  EXPECT_FALSE(finished_said_);
  Leave();
  hears_ = nullptr;
  exits_.clear();
  ASSERT_TRUE(Adopt());
  ASSERT_TRUE(Until([&] { return finished_; }));
  EXPECT_THAT(exits_, IsEmpty());
}

TEST_F(AdoptionTest, ARequestArrivesOnceThoughAgentsGo) {
  Keep(kLong);
  v1::JobPart part = Script(1, "cat; wait_go");
  part.mutable_workers(0)->set_stdin_mode(v1::STDIN_MODE_PIPE);
  Start(part);
  ASSERT_TRUE(UntilStarted());
  std::string expected;
  for (int i = 0; i < 20; ++i) {
    const std::string line = absl::StrCat("line ", i, "\n");
    absl::StrAppend(&expected, line);
    Stdin(0, line, i == 19);
    Leave();
    ASSERT_TRUE(Adopt());
  }
  Go();
  ASSERT_TRUE(Until([&] { return finished_; }));
  EXPECT_EQ(Out(), expected);
}

TEST_F(AdoptionTest, ALauncherThatComesAgainToTheSameAgentMissesNothing) {
  Keep(kLong);
  Start(Script(1, "wait_go; exit 4"));
  ASSERT_TRUE(UntilStarted());
  for (int i = 0; i < 20; ++i) AttachLauncher();
  Go();
  ASSERT_TRUE(Until([&] { return finished_; }));
  EXPECT_EQ(exits_[0].exit_code(), 4);
}

TEST_F(AdoptionTest, TheAgentsOwnEndOfTheJobIsAnswered) {
  Keep(kLong);
  Start(Shell(1, "echo ready; while :; do sleep 1; done"));
  ASSERT_TRUE(UntilStarted());
  v1::ShepherdRequest request;
  request.mutable_end_job();
  Send(request);
  ASSERT_TRUE(Until([&] { return finished_; }));
  EXPECT_EQ(answers_, 1);
  EXPECT_TRUE(exits_[0].told_to_stop());
}

TEST_F(AdoptionTest, AFenceEnteredWhileNoAgentIsThereIsSaidToTheNext) {
  Keep(kLong);
  Start(Script(1,
               "ask() { echo \"$1\" >&$PMI_FD; read -r answer <&3; echo \"$answer\"; }\n"
               "ask 'cmd=init pmi_version=1 pmi_subversion=1'\nwait_go\n"
               "ask cmd=barrier_in\nask cmd=finalize"));
  ASSERT_TRUE(UntilStarted());
  Leave();
  Go();
  ASSERT_TRUE(Adopt());
  ASSERT_TRUE(Until([&] { return !fences_.empty(); }));
  v1::JobRequest release;
  release.mutable_fence_release()->set_sequence(fences_[0].sequence());
  Send(release);
  ASSERT_TRUE(Until([&] { return finished_; }));
  EXPECT_EQ(exits_[0].exit_code(), 0);
  EXPECT_THAT(fences_, SizeIs(1));
}

// What is kept for it has a bound, and the job an end with a reason.
TEST_F(AdoptionTest, ALauncherThatNeverAcknowledgesLosesItsWorkers) {
  Keep(kLong);
  acknowledges_ = false;
  Start(Shell(1, "echo ready; while :; do sleep 1; done"));
  ASSERT_TRUE(UntilStarted());
  ASSERT_TRUE(Until([&] { return Out(0) == "ready\n"; }));
  auto workers = WorkerPidfds();
  // Answered at once: there is no such rank.
  const size_t most = link::kToLauncher.kept / link::kKeepingOverhead;
  for (size_t sent = 0; sent < most && broken_.empty(); sent += 1024) {
    for (int i = 0; i < 1024; ++i) Stdin(99, "", false);
    ASSERT_TRUE(Until([&] { return !broken_.empty() || launcher_->kept_bytes() == 0; }));
  }
  ASSERT_TRUE(Until([&] { return !broken_.empty(); }));
  EXPECT_THAT(broken_, ::testing::HasSubstr("are not acknowledged, and no more are kept for it"));
  EXPECT_FALSE(finished_said_);
  EXPECT_TRUE(Gone(workers[0].get()));
  EXPECT_TRUE(ShepherdExited());
}

TEST_F(AdoptionTest, ManyAgentsInTurnLoseNothing) {
  Keep(kLong);
  Start(Script(1, "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i + 1)); done; wait_go"));
  ASSERT_TRUE(UntilStarted());
  for (int i = 0; i < 20; ++i) {
    Leave();
    ASSERT_TRUE(Adopt()) << i;
  }
  Go();
  ASSERT_TRUE(Until([&] { return finished_; }));
  std::string expected;
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&expected, "line ", i, "\n");
  EXPECT_EQ(Out(), expected);
  EXPECT_THAT(exits_, SizeIs(1));
}

}  // namespace
}  // namespace dtrain::shepherd
