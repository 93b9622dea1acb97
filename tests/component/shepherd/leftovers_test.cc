// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <sys/mount.h>

#include "common/os/process_tree.h"
#include "tests/component/shepherd/harness.h"

namespace dtrain::shepherd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Hides cgroup v2 from the shepherd, as a node where it is not delegated does.
void HideCgroups() {
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    _exit(99);
  }
  for (const char* path : {"/sys/fs/cgroup/unified", "/sys/fs/cgroup"}) {
    mount("none", path, "tmpfs", MS_RDONLY, nullptr);
  }
}

// Each with cgroups where this machine has them, and with process groups and descendants alone.
class LeftoversTest : public ShepherdTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    // In a function that a test calls, a skip would end that function alone.
    if (GetParam() && !writable_) GTEST_SKIP() << "no writable cgroup v2";
    if (!GetParam() && writable_ && geteuid() != 0) GTEST_SKIP() << "needs root to hide cgroups";
  }
  void Run(v1::JobPart part) {
    Start(std::move(part), !GetParam() && writable_ ? HideCgroups : std::function<void()>());
  }
  // The descriptor of a process whose pid a worker printed.
  static os::UniqueFd Process(const std::string& pid) {
    auto fd = os::OpenPidfd(atoi(pid.c_str()));
    return fd.ok() ? *std::move(fd) : os::UniqueFd();
  }
  // A shell's command: a program that saves through a helper when it gets the signal of that name.
  static std::string Saver(const std::string& name) {
    return absl::StrCat(
        "/usr/bin/python3 -I -S -c '\n"
        "import signal, subprocess, sys\n"
        "helper = subprocess.Popen([\"cat\"], stdin=subprocess.PIPE)\n"
        "def save(*_):\n"
        "  helper.communicate(b\"saved\\n\")\n"
        "  sys.exit(helper.returncode)\n"
        "signal.signal(signal.",
        name,
        ", save)\n"
        "print(\"ready\", flush=True)\n"
        "while True: signal.pause()\n'");
  }
  // The job gets it when its only worker is ready, and ends well.
  void SavesAt(int signal) {
    ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
    v1::JobRequest request;
    request.mutable_signal()->set_signal(signal);
    Send(request);
    ASSERT_TRUE(UntilFinished());
    EXPECT_EQ(exits_[0].exit_code(), 0);
    EXPECT_EQ(exits_[0].signal(), 0);
  }
  const bool writable_ = os::FindWritableCgroup().ok();
};

INSTANTIATE_TEST_SUITE_P(, LeftoversTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? "WithCgroups" : "WithoutCgroups";
});

// D5
TEST_P(LeftoversTest, ADaemonOfAWorkerIsKilled) {
  Run(Shell(1,
            "export D=$(mktemp -d); "
            "setsid sh -c 'setsid sh -c "
            "\"echo \\$\\$; : >\\$D/there; exec sleep 600 >&- 2>&- <&- 3>&-\" &'; "
            "until [ -e $D/there ]; do sleep 0.01; done; rm -r $D; exit 0"));
  ASSERT_TRUE(UntilStarted());
  ASSERT_TRUE(UntilFinished());
  ASSERT_GT(atoi(Out().c_str()), 1);
  EXPECT_FALSE(Process(Out()));
}

// D6
TEST_P(LeftoversTest, AForkBombIsEnded) {
  // Grows to 127 processes, whose 64 last ones go on forking; bounded, for this machine's sake.
  Run(Shell(1,
            "b() { [ $1 -lt 6 ] && { b $(($1+1)) & b $(($1+1)) & wait; }; "
            "while :; do sleep 0.05; done; }; b 0"));
  ASSERT_TRUE(UntilStarted());
  bool grown = false;
  for (int i = 0; i < 1000 && !grown; ++i) {
    grown = os::Descendants(shepherd_pid_).size() >= 100;
    if (!grown) poll(nullptr, 0, 2);
  }
  EXPECT_TRUE(grown);
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_TRUE(failures_.empty());
  EXPECT_NE(access(CgroupPath().c_str(), F_OK), 0);
}

// D8
TEST_P(LeftoversTest, AGrandchildThatHoldsStdoutDoesNotKeepTheJob) {
  Run(Shell(2, "sleep 600 & echo mine; exit 0"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(0), "mine\n");
  EXPECT_EQ(exits_[0].exit_code(), 0);
  EXPECT_EQ(exits_[1].exit_code(), 0);
}

// D8
TEST_P(LeftoversTest, AGrandchildThatWritesForeverDoesNotKeepTheJob) {
  // Its own line first: behind the flood it might never find room in the pipe.
  Run(Shell(1, "echo mine; yes & exit 0"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(Out(), HasSubstr("mine\n"));
}

// D19
TEST_P(LeftoversTest, OrphansAreReapedWhileTheJobRuns) {
  v1::JobPart part =
      Shell(1, "i=0; while [ $i -lt 50 ]; do (true &) ; i=$((i+1)); done; echo ok; cat");
  part.mutable_workers(0)->set_stdin_mode(v1::STDIN_MODE_PIPE);
  Run(part);
  ASSERT_TRUE(Until([&] { return Out() == "ok\n"; }));
  auto zombies = [&] {
    size_t n = 0;
    for (const os::ProcessInfo& info : os::Descendants(shepherd_pid_)) n += info.state == 'Z';
    return n;
  };
  bool none = false;  // at one moment: the last of them may be ending just now
  for (int i = 0; i < 500 && !none; ++i) {
    none = zombies() == 0;
    if (!none) poll(nullptr, 0, 10);
  }
  EXPECT_TRUE(none);
  Stdin(0, "", true);
  ASSERT_TRUE(UntilFinished());
}

// D4, D5
TEST_P(LeftoversTest, AKillReachesWhatLeftTheGroup) {
  Run(Shell(1,
            "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$; sleep 600' & wait; sleep 600"));
  ASSERT_TRUE(Until([&] { return !Out().empty(); }));
  os::UniqueFd daemon = Process(Out());
  ASSERT_TRUE(daemon);
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_TRUE(Gone(daemon.get(), Duration::zero()));
}

// H9
TEST_P(LeftoversTest, TheLackOfACgroupIsTold) {
  Run(Shell(1, "exit 0"));
  ASSERT_TRUE(UntilFinished());
  ASSERT_TRUE(started_.has_value());
  EXPECT_EQ(started_->cgroup(), GetParam());
  EXPECT_EQ(has_no_cgroups_, !GetParam());
  EXPECT_THAT(warnings_, IsEmpty());
}

// H9
TEST_P(LeftoversTest, ARequiredCgroupThatIsMissingRefusesTheJob) {
  v1::JobPart part = Shell(2, "exit 0");
  part.set_require_cgroup(true);
  Run(part);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(started_.has_value(), GetParam());
  if (GetParam()) {
    EXPECT_THAT(failures_, IsEmpty());
  } else {
    ASSERT_THAT(failures_, SizeIs(1));
    EXPECT_THAT(failures_[0].message(), HasSubstr("--require-cgroup"));
  }
}

TEST_P(LeftoversTest, AHelperMayEndByItselfAfterASuccess) {
  v1::JobPart part = Shell(1, "(sleep 0.5; echo its last words) & exit 0");
  part.set_grace_ms(600000);
  Run(part);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "its last words\n");
}

// The launcher ends the job at once.
TEST_P(LeftoversTest, AHelperMayEndByItselfAfterAFailure) {
  Run(Shell(1, "(sleep 0.5; echo its last words) & exit 3"));
  ASSERT_TRUE(Until([&] { return exits_.count(0) == 1; }));
  Stop(600000);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "its last words\n");
  EXPECT_EQ(exits_[0].exit_code(), 3);
}

TEST_P(LeftoversTest, AHelperThatDoesNotEndGetsTerm) {
  Run(Shell(1,
            "export D=$(mktemp -d); sh -c 'trap \"echo saved; exit\" TERM; echo; : >$D/there; "
            "while :; do sleep 0.05; done' & "
            "until [ -e $D/there ]; do sleep 0.01; done; rm -r $D; exit 0"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "\nsaved\n");
}

TEST_P(LeftoversTest, AHelperThatIsKilledIsNamed) {
  Run(Shell(1, "trap '' TERM; sh -c 'echo $$; exec sleep 600' & exit 0"));
  ASSERT_TRUE(UntilFinished());
  ASSERT_FALSE(warnings_.empty());
  EXPECT_THAT(
      warnings_.back(),
      HasSubstr(absl::StrCat("killed what the ranks here had left running: sleep (pid ",
                             atoi(Out().c_str()), ") of rank 0, 2 s after the last of them")));
}

TEST_P(LeftoversTest, ACancelHurriesHelpers) {
  v1::JobPart part = Shell(1, "sleep 600 & exit 0");
  part.set_grace_ms(600000);
  Run(part);
  const std::string line = "waiting for what the ranks here have left running: sleep (pid ";
  ASSERT_TRUE(Until([&] { return !warnings_.empty() && warnings_.back().find(line) == 0; }));
  v1::JobRequest request;
  request.mutable_stop()->set_grace_ms(600000);
  request.mutable_stop()->set_cancelled(true);
  Send(request);
  EXPECT_TRUE(UntilFinished());
}

// The helper would die of SIGTERM, and the program could not save through it.
TEST_P(LeftoversTest, ATermSparesTheHelpersOfAProgramThatSaves) {
  Run(Shell(1, "exec " + Saver("SIGTERM")));
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  Stop(20000);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "ready\nsaved\n");
  EXPECT_EQ(exits_[0].exit_code(), 0);
  EXPECT_EQ(exits_[0].signal(), 0);
}

// K5
TEST_P(LeftoversTest, AUserSignalSparesTheHelpersOfAProgramThatSaves) {
  Run(Shell(1, "exec " + Saver("SIGUSR1")));
  SavesAt(SIGUSR1);
  EXPECT_EQ(Out(), "ready\nsaved\n");
}

// K5
TEST_P(LeftoversTest, AUserSignalSparesAShellWithoutATrap) {
  Run(Shell(1, Saver("SIGUSR2") + "; echo goes on"));
  SavesAt(SIGUSR2);
  EXPECT_EQ(Out(), "ready\nsaved\ngoes on\n");
}

// K5: torchrun starts its workers so.
TEST_P(LeftoversTest, AUserSignalReachesAProgramInAnotherGroup) {
  Run(Shell(1, "setsid " + Saver("SIGUSR1") + "; echo goes on"));
  SavesAt(SIGUSR1);
  EXPECT_EQ(Out(), "ready\nsaved\ngoes on\n");
}

// K5: that trap makes bash catch every signal, and end.
TEST_P(LeftoversTest, AUserSignalSparesABashThatCleansUpAtItsEnd) {
  Run(Part(1, {"/bin/bash", "-c",
               absl::StrCat("trap 'echo cleans up' EXIT; ", Saver("SIGUSR1"), "; echo goes on")}));
  SavesAt(SIGUSR1);
  EXPECT_EQ(Out(), "ready\nsaved\ngoes on\ncleans up\n");
}

// The shell dies of SIGTERM before its program has saved.
TEST_P(LeftoversTest, TheProgramBelowAShellMaySave) {
  Run(Shell(1,
            "/usr/bin/python3 -I -S -c '\n"
            "import signal, sys, time\n"
            "def save(*_):\n"
            "  time.sleep(0.5)\n"
            "  print(\"saved\")\n"
            "  sys.exit()\n"
            "signal.signal(signal.SIGTERM, save)\n"
            "print(\"ready\", flush=True)\n"
            "while True: signal.pause()\n'; echo goes on"));
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  Stop(20000);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "ready\nsaved\n");
}

TEST_P(LeftoversTest, AKilledWorkerIsNamedWithWhatItWrote) {
  const std::string file = absl::StrCat(::testing::TempDir(), job_id_, ".bin");
  Run(Shell(1, absl::StrCat("trap '' TERM; exec 7>", file, "; echo; sleep 600")));
  ASSERT_TRUE(Until([&] { return !Out().empty(); }));
  Stop(1000);
  ASSERT_TRUE(UntilFinished());
  (void)unlink(file.c_str());
  ASSERT_FALSE(warnings_.empty());
  EXPECT_THAT(warnings_.back(), HasSubstr("killed rank 0, sh (pid "));
  EXPECT_THAT(warnings_.back(),
              HasSubstr(absl::StrCat(", which had not ended 1 s after SIGTERM and had open for "
                                     "writing: ",
                                     file, "; --grace gives more time")));
}

// The shell ends at once, and is the worker.
TEST_P(LeftoversTest, AProgramBelowAShellThatIsKilledIsNamedLikewise) {
  const std::string file = absl::StrCat(::testing::TempDir(), job_id_, ".bin");
  Run(Shell(1, absl::StrCat("/usr/bin/python3 -I -S -c '\n"
                            "import signal\n"
                            "file = open(\"",
                            file,
                            "\", \"wb\")\n"
                            "signal.signal(signal.SIGTERM, lambda *_: None)\n"
                            "print(\"ready\", flush=True)\n"
                            "while True: signal.pause()\n'; echo goes on")));
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  Stop(1000);
  ASSERT_TRUE(UntilFinished());
  (void)unlink(file.c_str());
  EXPECT_EQ(exits_[0].signal(), SIGTERM);
  ASSERT_FALSE(warnings_.empty());
  EXPECT_THAT(warnings_.back(),
              HasSubstr("killed what the ranks here had left running: python3 (pid "));
  EXPECT_THAT(warnings_.back(), HasSubstr(") of rank 0, "));
  EXPECT_THAT(warnings_.back(),
              HasSubstr(absl::StrCat(" after the last of them had ended; open for writing: ", file,
                                     "; --grace gives more time")));
}

}  // namespace
}  // namespace dtrain::shepherd
