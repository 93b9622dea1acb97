// SPDX-License-Identifier: Apache-2.0
// A launcher that takes a job over from another one: it knows nothing, and is told all again.
#include <fstream>

#include "tests/component/shepherd/harness.h"

namespace dtrain::shepherd {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SuccessorTest : public ShepherdTest {
 protected:
  SuccessorTest() {
    generation_ = 1;
    reclaims_ = false;
    char name[] = "/tmp/dtrain-successor-XXXXXX";
    directory_ = mkdtemp(name);
    Keep(milliseconds(60000));
  }
  ~SuccessorTest() override { (void)!system(absl::StrCat("rm -rf ", directory_).c_str()); }
  void Go() { std::ofstream(absl::StrCat(directory_, "/go")) << "go"; }
  v1::JobPart WaitingScript(int workers, const std::string& script) {
    return Shell(workers, absl::StrCat("wait_go() { until [ -e ", directory_,
                                       "/go ]; do sleep 0.01; done; }\n", script));
  }
  std::string directory_;
};

TEST_F(SuccessorTest, ItSeesTheWorkersThatRunAndTheirEnd) {
  Start(WaitingScript(2, "echo before; wait_go; exit $((3 + RANK))"));
  ASSERT_TRUE(UntilStarted());
  const v1::Started started = *started_;
  ASSERT_TRUE(Until([&] { return Out(0) == "before\n" && Out(1) == "before\n"; }));
  Succeed();
  ASSERT_TRUE(UntilRetold());
  EXPECT_THAT(order_, ElementsAre(v1::JobEvent::kStarted, v1::JobEvent::kRetold));
  EXPECT_EQ(started_->SerializeAsString(), started.SerializeAsString());
  Go();
  ASSERT_TRUE(Until([&] { return finished_; }));
  EXPECT_EQ(exits_[0].exit_code(), 3);
  EXPECT_EQ(exits_[1].exit_code(), 4);
  Release();
  EXPECT_TRUE(ShepherdExited());
}

TEST_F(SuccessorTest, ExitsAreSaidAgainWithTheirLastWords) {
  Start(WaitingScript(2, "if [ $RANK = 0 ]; then echo broken pipe dream >&2; exit 3; fi; wait_go"));
  ASSERT_TRUE(UntilStarted());
  ASSERT_TRUE(Until([&] { return exits_.count(0) > 0; }));
  const v1::WorkerExit exit = exits_[0];
  EXPECT_THAT(exit.stderr_tail(), HasSubstr("broken pipe dream"));
  for (int i = 0; i < 3; ++i) {
    Succeed();
    ASSERT_TRUE(UntilRetold());
    EXPECT_THAT(order_,
                ElementsAre(v1::JobEvent::kStarted, v1::JobEvent::kExit, v1::JobEvent::kRetold));
    EXPECT_EQ(exits_[0].SerializeAsString(), exit.SerializeAsString());
  }
  Go();
  ASSERT_TRUE(Until([&] { return finished_; }));
}

TEST_F(SuccessorTest, OfAJobThatIsOverItHearsAllInOrder) {
  Start(Shell(1, "exit 5"));
  ASSERT_TRUE(Until([&] { return finished_; }));
  Succeed();
  ASSERT_TRUE(UntilRetold());
  EXPECT_THAT(order_, ElementsAre(v1::JobEvent::kStarted, v1::JobEvent::kExit,
                                  v1::JobEvent::kFinished, v1::JobEvent::kRetold));
  EXPECT_EQ(exits_[0].exit_code(), 5);
  Release();
  EXPECT_TRUE(ShepherdExited());
}

TEST_F(SuccessorTest, AFailureIsSaidAgain) {
  Start(Part(1, {"/no/such/program"}));
  ASSERT_TRUE(Until([&] { return finished_said_; }));
  ASSERT_THAT(failures_, SizeIs(1));
  const std::string message = failures_[0].message();
  Succeed();
  ASSERT_TRUE(UntilRetold());
  EXPECT_THAT(order_,
              ElementsAre(v1::JobEvent::kFailure, v1::JobEvent::kFinished, v1::JobEvent::kRetold));
  EXPECT_EQ(failures_[0].message(), message);
}

TEST_F(SuccessorTest, TheLastTwoFencesAreSaidAgainAndAnOldReleaseDoesNothing) {
  Start(WaitingScript(1,
                      "ask() { echo \"$1\" >&$PMI_FD; read -r answer <&3; echo \"$answer\"; }\n"
                      "ask 'cmd=init pmi_version=1 pmi_subversion=1'\n"
                      "for i in 1 2 3; do ask cmd=barrier_in; done\nask cmd=finalize"));
  ASSERT_TRUE(UntilStarted());
  const auto release = [this](uint32_t sequence) {
    v1::JobRequest request;
    request.mutable_fence_release()->set_sequence(sequence);
    Send(request);
  };
  for (uint32_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(Until([&] { return fences_.size() == i + 1; }));
    release(i);
  }
  ASSERT_TRUE(Until([&] { return fences_.size() == 3; }));
  Succeed();
  ASSERT_TRUE(UntilRetold());
  ASSERT_THAT(fences_, SizeIs(2));
  EXPECT_EQ(fences_[0].sequence(), 1u);
  EXPECT_EQ(fences_[1].sequence(), 2u);
  release(1);
  (void)Until([] { return false; }, milliseconds(200));
  EXPECT_THAT(exits_, IsEmpty());
  EXPECT_THAT(fences_, SizeIs(2));
  release(2);
  ASSERT_TRUE(Until([&] { return finished_; }));
  EXPECT_EQ(exits_[0].exit_code(), 0);
}

// What its predecessor has read, and not said that it is safe, is still there.
TEST_F(SuccessorTest, OutputThatWasNotAcknowledgedIsStillThere) {
  Start(
      WaitingScript(1, "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i + 1)); done; wait_go"));
  ASSERT_TRUE(UntilStarted());
  std::string expected;
  for (int i = 0; i < 500; ++i) absl::StrAppend(&expected, "line ", i, "\n");
  ASSERT_TRUE(Until([&] { return Out() == expected; }));
  logs_.clear();
  Succeed();
  ReadLogs();
  ASSERT_TRUE(Until([&] { return Out() == expected; }));
  Go();
  ASSERT_TRUE(Until([&] { return finished_; }));
}

TEST_F(SuccessorTest, TheNextAgentLearnsWhoHasTheJobAndItsLauncherGoesOn) {
  Start(WaitingScript(1, "wait_go; exit 4"));
  ASSERT_TRUE(UntilStarted());
  v1::ShepherdRequest keep;
  keep.mutable_keep_running()->mutable_hello()->set_generation(2);
  keep.mutable_keep_running()->mutable_hello()->set_lease_ms(60000);
  Send(keep);
  Succeed();
  ASSERT_TRUE(UntilRetold());
  Leave();
  ASSERT_TRUE(Adopt());
  EXPECT_EQ(account_->kept().hello().generation(), 2u);
  Go();
  ASSERT_TRUE(Until([&] { return finished_; }));
  EXPECT_EQ(retold_, 1) << "the same launcher is told nothing again";
  EXPECT_EQ(exits_[0].exit_code(), 4);
}

TEST_F(SuccessorTest, ItMayComeWithAnotherAgent) {
  Start(WaitingScript(1, "wait_go; exit 4"));
  ASSERT_TRUE(UntilStarted());
  const uint32_t pid = started_->workers(0).pid();
  Leave();
  os::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un name = SocketName();
  ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  Listen(std::move(fd));
  ASSERT_TRUE(Until([this] { return account_.has_value(); }));
  Succeed();
  ReadLogs();
  ASSERT_TRUE(UntilRetold());
  EXPECT_EQ(started_->workers(0).pid(), pid);
  Go();
  ASSERT_TRUE(Until([&] { return finished_; }));
}

// Its agent refuses it; if it did not, nothing would be heard of it.
TEST_F(SuccessorTest, OneThatHasLostTheJobStopsNothing) {
  Start(WaitingScript(1, "wait_go; exit 4"));
  ASSERT_TRUE(UntilStarted());
  Succeed();
  ASSERT_TRUE(UntilRetold());
  const uint64_t present = generation_;
  generation_ = 1;
  AttachLauncher();
  ASSERT_TRUE(Until([&] { return answered_ == asked_; }));
  v1::JobRequest stop;
  stop.mutable_stop();
  ASSERT_TRUE(launcher_->Send(link::SharedBytes(stop.SerializeAsString())).ok());
  carrier_->Pump();
  (void)Until([] { return false; }, milliseconds(200));
  EXPECT_THAT(exits_, IsEmpty());
  generation_ = present;
  MakeLauncher();
  Succeed();
  ASSERT_TRUE(UntilRetold());
  EXPECT_THAT(exits_, IsEmpty());
  Go();
  ASSERT_TRUE(Until([&] { return finished_; }));
  EXPECT_EQ(exits_[0].exit_code(), 4);
}

TEST_F(SuccessorTest, WithoutAnAgentTheWorkersOfADetachedJobRunOnLongerThanItsLease) {
  Keep(milliseconds(200));
  away_ = milliseconds(60000);
  Start(WaitingScript(1, "wait_go; exit 4"));
  ASSERT_TRUE(UntilStarted());
  Leave();
  (void)Until([] { return false; }, milliseconds(800));
  ASSERT_TRUE(Adopt());
  EXPECT_THAT(exits_, IsEmpty());
  Go();
  ASSERT_TRUE(Until([&] { return finished_; }));
  EXPECT_EQ(exits_[0].exit_code(), 4);
}

// Workers that nobody was heard of for are ended; how, a late launcher still learns.
TEST_F(SuccessorTest, HowTheyEndedIsKeptForALateOne) {
  most_silence_ = milliseconds(300);
  Start(Shell(1, "echo ready; exec sleep 600"));
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  link_due_.Cancel();
  carrier_.reset();
  launcher_->Close();
  ASSERT_TRUE(Until([&] { return ended_; }));
  EXPECT_FALSE(Gone(shepherd_.get(), milliseconds(1000)));
  most_silence_ = milliseconds(60000);
  Succeed();
  ASSERT_TRUE(UntilRetold());
  EXPECT_EQ(exits_[0].signal(), static_cast<uint32_t>(SIGTERM));
  EXPECT_TRUE(exits_[0].told_to_stop());
  Release();
  EXPECT_TRUE(ShepherdExited());
}

}  // namespace
}  // namespace dtrain::shepherd
