// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <fstream>

#include "tests/component/shepherd/harness.h"

namespace dtrain::shepherd {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LifecycleTest : public ShepherdTest {
 protected:
  // Text of a file the workers write, which tells that they are where the test wants them.
  std::string Shared(const std::string& name) { return absl::StrCat(directory_, "/", name); }
  LifecycleTest() {
    char name[] = "/tmp/dtrain-life-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~LifecycleTest() override { (void)!system(absl::StrCat("rm -rf ", directory_).c_str()); }
  // As the launcher does while another node saves; here until a worker has ended.
  void SayThatAnotherNodeSaves() {
    if (!exits_.empty()) return;
    v1::JobRequest request;
    request.mutable_saving();
    Send(request);
    say_again_.After(std::chrono::milliseconds(500), [this] { SayThatAnotherNodeSaves(); });
  }
  std::string directory_;
  loop::Timer say_again_{loop_};
};

TEST_F(LifecycleTest, RunsWorkersAndTellsTheirOutputAndExit) {
  Start(Shell(2, "echo out $RANK; echo err $RANK >&2; exit $RANK"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_TRUE(failures_.empty());
  ASSERT_THAT(exits_, SizeIs(2));
  EXPECT_EQ(exits_[0].exit_code(), 0);
  EXPECT_EQ(exits_[0].stderr_tail(), "");
  EXPECT_EQ(exits_[1].exit_code(), 1);
  EXPECT_EQ(exits_[1].stderr_tail(), "err 1\n");
  EXPECT_FALSE(exits_[1].told_to_stop());
  EXPECT_GT(exits_[1].monotonic_nanos(), 0);
  EXPECT_EQ(Out(0), "out 0\n");
  EXPECT_EQ(Out(1), "out 1\n");
  EXPECT_EQ(Err(1), "err 1\n");
  EXPECT_THAT(logs_, SizeIs(4));
  ASSERT_THAT(report_.job().ranks(), SizeIs(2)) << "as the agent sees it";
  EXPECT_EQ(report_.job().ranks(1).pid(), exits_[1].pid());
  EXPECT_EQ(report_.job().ranks(1).exit().exit_code(), 1);
  EXPECT_EQ(report_.job().ranks(1).exit().stderr_tail(), "");
  for (auto& [key, log] : logs_) EXPECT_TRUE(log.end.has_value());
  EXPECT_NE(access(CgroupPath().c_str(), F_OK), 0) << "the cgroup was left behind";
}

// D2
TEST_F(LifecycleTest, ASignalDeathIsTold) {
  Start(Shell(1, "kill -SEGV $$"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].signal(), SIGSEGV);
  EXPECT_FALSE(exits_[0].out_of_memory());
}

// D4
TEST_F(LifecycleTest, ATermProofWorkerIsKilledAfterTheGrace) {
  Start(Shell(1, "trap '' TERM; echo ready; while :; do sleep 1; done"));
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  Stop(100);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].signal(), SIGKILL);
  EXPECT_TRUE(exits_[0].told_to_stop());
  EXPECT_FALSE(exits_[0].out_of_memory());
}

TEST_F(LifecycleTest, AWorkerMayEndInItsGrace) {
  Start(Shell(1, "trap 'echo bye; exit 9' TERM; echo ready; while :; do sleep 0.02; done"));
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  Stop(60000);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].exit_code(), 9);
  EXPECT_EQ(Out(), "ready\nbye\n");
}

// K1
// A worker that saves for as long as it says, in pieces of 2 MB, when it is told to end.
std::vector<std::string> Saves(int pieces) {
  return {"/usr/bin/python3", "-c",
          "import os, signal, sys, tempfile, time\n"
          "file = tempfile.NamedTemporaryFile(dir='/var/tmp', buffering=0)\n"
          "def save(*_):\n"
          "    for _ in range(int(sys.argv[1])):\n"
          "        file.write(bytes(2000000))\n"
          "        time.sleep(0.2)\n"
          "    print('saved', flush=True)\n"
          "    sys.exit(0)\n"
          "signal.signal(signal.SIGTERM, save)\n"
          "print('ready', flush=True)\n"
          "while True: time.sleep(600)\n",
          std::to_string(pieces)};
}

TEST_F(LifecycleTest, AWorkerThatSavesHasMoreThanItsGrace) {
  v1::JobPart part = Part(1, Saves(15));
  part.set_grace_limit_ms(600000);
  Start(part);
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  Stop(1000);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "ready\nsaved\n");
  EXPECT_EQ(exits_[0].exit_code(), 0);
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_GE(savings_, 3) << "the launcher waits for it";
}

TEST_F(LifecycleTest, ASaveEndsWithTheLimitOfTheGrace) {
  v1::JobPart part = Part(1, Saves(100000));
  part.set_grace_limit_ms(1500);
  Start(part);
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  Stop(1000);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].signal(), SIGKILL);
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("had open for writing: /var/tmp/tmp"));
  EXPECT_THAT(warnings_[0], HasSubstr("; --grace-limit gives more time"));
}

// Its ranks may wait for those that save. One word of that counts for 2 s (kAfterWriting).
TEST_F(LifecycleTest, ASaveOnAnotherNodeKeepsAWorkerAlive) {
  v1::JobPart part =
      Shell(1, "trap 'sleep 2.3; exit 7' TERM; echo ready; while :; do sleep 0.02; done");
  part.set_grace_limit_ms(600000);
  Start(part);
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  Stop(1000);
  SayThatAnotherNodeSaves();
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].signal(), 0);
  EXPECT_EQ(exits_[0].exit_code(), 7);
}

TEST_F(LifecycleTest, ASaveOnAnotherNodeCountsUpToTheLimitOfTheGrace) {
  v1::JobPart part = Shell(1, "trap 'echo term' TERM; echo ready; while :; do sleep 0.02; done");
  part.set_grace_limit_ms(1500);
  Start(part);
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  Stop(1000);
  SayThatAnotherNodeSaves();
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].signal(), SIGKILL);
  EXPECT_TRUE(exits_[0].told_to_stop());
  EXPECT_THAT(warnings_, Contains(HasSubstr("; --grace-limit gives more time")));
}

// A host that leaves: then the limit does not count.
TEST_F(LifecycleTest, AStopByTheAgentNamesTheGraceThatEnded) {
  v1::JobPart part = Part(1, Saves(100000));
  part.set_grace_limit_ms(600000);
  Start(part);
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  v1::ShepherdRequest request;
  request.mutable_end_job()->set_grace_ms(1000);
  Send(request);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].signal(), SIGKILL);
  EXPECT_THAT(warnings_, Contains(HasSubstr("had open for writing: /var/tmp/tmp")));
  EXPECT_THAT(warnings_, Contains(HasSubstr("; --grace gives more time")));
}

// As the kernel does for memory: that is not our doing, though we have sent SIGTERM.
TEST_F(LifecycleTest, AKillInTheGraceIsNotOurs) {
  Start(Shell(1, "trap 'echo term' TERM; echo ready; while :; do sleep 0.02; done"));
  ASSERT_TRUE(UntilStarted());
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  Stop(20000);
  ASSERT_TRUE(Until([&] { return Out() == "ready\nterm\n"; }));
  ASSERT_EQ(kill(static_cast<pid_t>(started_->workers(0).pid()), SIGKILL), 0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].signal(), SIGKILL);
  EXPECT_FALSE(exits_[0].told_to_stop());
}

TEST_F(LifecycleTest, ASecondStopShortensTheFirst) {
  Start(Shell(1, "trap '' TERM; echo ready; while :; do sleep 1; done"));
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  Stop(3600000);
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].signal(), SIGKILL);
}

TEST_F(LifecycleTest, OneWorkersFailureLeavesTheOthersAlone) {
  Start(Shell(2, "[ $RANK = 0 ] && exit 3; read -r line; echo $line"));
  part_ = {};
  ASSERT_TRUE(Until([&] { return exits_.count(0) > 0; }));
  EXPECT_EQ(exits_[0].exit_code(), 3);
  ASSERT_TRUE(UntilFinished());  // rank 1 reads end of file
  EXPECT_EQ(exits_[1].exit_code(), 0);
}

TEST_F(LifecycleTest, SignalsReachEachWorkersGroup) {
  Start(Shell(2, "trap 'echo usr1; exit 0' USR1; echo ready; while :; do sleep 0.02; done"));
  ASSERT_TRUE(Until([&] { return Out(0) == "ready\n" && Out(1) == "ready\n"; }));
  v1::JobRequest request;
  request.mutable_signal()->set_signal(SIGUSR1);
  Send(request);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(0), "ready\nusr1\n");
  EXPECT_EQ(Out(1), "ready\nusr1\n");
}

// E5, F2
TEST_F(LifecycleTest, WorkersEndWhenTheAgentIsGone) {
  v1::JobPart part = Shell(2, "trap '' TERM; echo ready; while :; do echo more; sleep 0.01; done");
  part.set_grace_ms(200);
  Start(part);
  ASSERT_TRUE(UntilStarted());
  ASSERT_TRUE(Until([&] { return Out(1).substr(0, 6) == "ready\n"; }));
  auto workers = WorkerPidfds();
  channel_.reset();
  EXPECT_TRUE(ShepherdExited());
  for (auto& worker : workers) EXPECT_TRUE(Gone(worker.get(), Duration::zero()));
  EXPECT_NE(access(CgroupPath().c_str(), F_OK), 0);
}

// E11
TEST_F(LifecycleTest, WorkersDieWithAShepherdThatIsKilled) {
  Start(Shell(2, "trap '' TERM; echo ready; exec sleep 600"));
  ASSERT_TRUE(UntilStarted());
  ASSERT_TRUE(Until([&] { return Out(0) == "ready\n" && Out(1) == "ready\n"; }));
  auto workers = WorkerPidfds();
  ASSERT_TRUE(os::SendSignal(shepherd_.get(), SIGKILL).ok());
  for (auto& worker : workers) EXPECT_TRUE(Gone(worker.get()));
  EXPECT_TRUE(Until([&] { return closed_; }));
}

// K7
TEST_F(LifecycleTest, ATerminatedShepherdEndsItsWorkersInOrder) {
  Start(Shell(1, "echo ready; exec sleep 600"));
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  ASSERT_TRUE(os::SendSignal(shepherd_.get(), SIGTERM).ok());
  ASSERT_TRUE(os::SendSignal(shepherd_.get(), SIGTERM).ok());
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].signal(), SIGTERM);
  EXPECT_TRUE(exits_[0].told_to_stop());
}

TEST_F(LifecycleTest, AStopBeforeTheStartFinishes) {
  v1::JobPart none;
  Start(none);
  ASSERT_TRUE(UntilFinished());
  ASSERT_THAT(failures_, SizeIs(1));
  EXPECT_EQ(failures_[0].kind(), v1::NodeFailure::KIND_REFUSED);
}

// A14
TEST_F(LifecycleTest, AMissingProgramIsReportedOnce) {
  Start(Part(4, {"no-such-program"}));
  ASSERT_TRUE(UntilFinished());
  ASSERT_THAT(failures_, SizeIs(1));
  EXPECT_EQ(failures_[0].kind(), v1::NodeFailure::KIND_SPAWN);
  EXPECT_EQ(failures_[0].exit_code(), 127);
  EXPECT_EQ(failures_[0].error_number(), ENOENT);
  EXPECT_THAT(failures_[0].message(), HasSubstr("no-such-program"));
  EXPECT_THAT(exits_, IsEmpty());
  EXPECT_FALSE(started_.has_value());
}

// A14
TEST_F(LifecycleTest, ADirectoryIsNotExecutable) {
  Start(Part(2, {directory_}));
  ASSERT_TRUE(UntilFinished());
  ASSERT_THAT(failures_, SizeIs(1));
  EXPECT_EQ(failures_[0].exit_code(), 126);
}

// A13
TEST_F(LifecycleTest, AMissingWorkingDirectoryIsNamedOnce) {
  v1::JobPart part = Part(3, {"true"});
  part.mutable_programs(0)->set_working_directory("/no/such/directory");
  Start(part);
  ASSERT_TRUE(UntilFinished());
  ASSERT_THAT(failures_, SizeIs(1));
  EXPECT_EQ(failures_[0].exit_code(), 127);
  EXPECT_THAT(failures_[0].message(), HasSubstr("/no/such/directory"));
}

// A12, D17
TEST_F(LifecycleTest, AnEnvironmentTooBigForTheSystemNamesTheVariable) {
  v1::JobPart part = Part(2, {"true"});
  v1::EnvVar* var = part.add_env();
  var->set_name("HUGE");
  var->set_value(std::string(10 << 20, 'x'));
  Start(part);
  ASSERT_TRUE(UntilFinished());
  ASSERT_THAT(failures_, SizeIs(1));
  EXPECT_EQ(failures_[0].error_number(), E2BIG);
  EXPECT_EQ(failures_[0].exit_code(), 126);
  EXPECT_THAT(failures_[0].message(), HasSubstr("HUGE"));
}

// A12
TEST_F(LifecycleTest, OddEnvironmentsArriveExactly) {
  v1::JobPart part = Shell(1, "printf %s \"$ODD\"; env | wc -l >&2");
  v1::EnvVar* odd = part.add_env();
  odd->set_name("ODD");
  odd->set_value("a=b\nc\xff d");
  for (int i = 0; i < 1000; ++i) {
    v1::EnvVar* var = part.add_env();
    var->set_name(absl::StrCat("V", i));
    var->set_value("x");
  }
  Start(part);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "a=b\nc\xff d");
  EXPECT_GT(atoi(Err().c_str()), 1000);
}

// H1
TEST_F(LifecycleTest, TooFewDescriptorsAreRefusedBeforeTheStart) {
  Start(Shell(8, "exit 0"), [] {
    rlimit limit{64, 64};
    setrlimit(RLIMIT_NOFILE, &limit);
  });
  ASSERT_TRUE(UntilFinished());
  ASSERT_THAT(failures_, SizeIs(1));
  EXPECT_EQ(failures_[0].kind(), v1::NodeFailure::KIND_RESOURCES);
  EXPECT_THAT(failures_[0].message(), HasSubstr("open files"));
}

// H1
TEST_F(LifecycleTest, ASoftLimitIsRaisedForUsAndKeptForWorkers) {
  Start(Shell(8, "ulimit -n; ulimit -c"), [] {
    rlimit limit{64, 4096};
    setrlimit(RLIMIT_NOFILE, &limit);
  });
  ASSERT_TRUE(UntilFinished());
  EXPECT_TRUE(failures_.empty());
  EXPECT_EQ(Out(7), "64\n0\n");
}

// D9
TEST_F(LifecycleTest, WorkersHaveOnlyTheStandardStreamsPmiAndThePage) {
  Start(Shell(2, "ls -m /proc/$$/fd; grep -E '^Sig(Blk|Ign)' /proc/self/status >&2"));
  ASSERT_TRUE(UntilFinished());
  for (uint32_t rank : {0u, 1u}) {
    EXPECT_EQ(Out(rank), "0, 1, 2, 3, 4\n");
    EXPECT_EQ(Err(rank), "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  }
}

TEST_F(LifecycleTest, AStoppedWorkerStillEnds) {
  Start(Shell(1, "echo ready; kill -STOP $$; exec sleep 600"));
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  Stop(60000);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].signal(), SIGTERM);
}

}  // namespace
}  // namespace dtrain::shepherd
