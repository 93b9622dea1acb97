// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include <cstdlib>

#include "tests/component/shepherd/store_fixture.h"

namespace dtrain::shepherd {
namespace {

constexpr char kCounts[] =
    "trap 'echo usr1' USR1; trap 'echo usr2; exit 0' USR2; echo ready; "
    "while :; do sleep 0.02; done";

// We are its agent, and its parent.
class UserSignalsTest : public StoreFixture {
 protected:
  void AgentSends(int signal) { ASSERT_EQ(kill(shepherd_pid_, signal), 0); }
  void AnotherSends(const std::string& signal, pid_t to) {
    ASSERT_EQ(system(absl::StrCat("kill -", signal, " ", to).c_str()), 0);
  }
  void LauncherSends(int signal) {
    v1::JobRequest request;
    request.mutable_signal()->set_signal(signal);
    Send(request);
  }
  // What it was sent before has been taken.
  bool UntilTaken() {
    for (int i = 0; i < 2; ++i) {
      const int before = beats_;
      v1::JobRequest beat;
      beat.mutable_heartbeat();
      EXPECT_TRUE(launcher_->SendUnkept(0, link::SharedBytes(beat.SerializeAsString())).ok());
      carrier_->Pump();
      if (!Until([&] { return beats_ > before; })) return false;
    }
    return true;
  }
  bool UntilReady() {
    return Until([this] { return started_ && Out(0) == "ready\n" && Out(1) == "ready\n"; });
  }
};

TEST_F(UserSignalsTest, OneThatTheAgentAloneGotReachesEachWorker) {
  Start(Shell(2, kCounts));
  ASSERT_TRUE(UntilReady());
  AgentSends(SIGUSR1);
  ASSERT_TRUE(Until([this] { return Out(0) == "ready\nusr1\n" && Out(1) == "ready\nusr1\n"; }));
  AgentSends(SIGUSR2);
  ASSERT_TRUE(UntilFinished());
  for (const uint32_t rank : {0u, 1u}) {
    EXPECT_EQ(Out(rank), "ready\nusr1\nusr2\n");
    EXPECT_EQ(exits_[rank].signal(), 0);
  }
  EXPECT_THAT(failures_, ::testing::IsEmpty());
}

TEST_F(UserSignalsTest, OneThatAllProcessesGotComesOnce) {
  Start(Shell(2, kCounts));
  ASSERT_TRUE(UntilReady());
  AnotherSends("USR1", shepherd_pid_);
  for (const v1::WorkerStarted& worker : started_->workers()) {
    AnotherSends("USR1", static_cast<pid_t>(worker.pid()));
  }
  ASSERT_TRUE(Until([this] { return Out(0) == "ready\nusr1\n" && Out(1) == "ready\nusr1\n"; }));
  ASSERT_TRUE(UntilTaken());
  AgentSends(SIGUSR1);
  LauncherSends(SIGUSR1);
  ASSERT_TRUE(UntilTaken());
  AgentSends(SIGUSR2);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(0), "ready\nusr1\nusr2\n");
  EXPECT_EQ(Out(1), "ready\nusr1\nusr2\n");
}

TEST_F(UserSignalsTest, TheLaunchersAndTheAgentsAreOneButTwoOfTheLaunchersAreTwo) {
  Start(Shell(2, kCounts));
  ASSERT_TRUE(UntilReady());
  LauncherSends(SIGUSR1);
  ASSERT_TRUE(Until([this] { return Out(0) == "ready\nusr1\n" && Out(1) == "ready\nusr1\n"; }));
  AgentSends(SIGUSR1);
  ASSERT_TRUE(UntilTaken());
  LauncherSends(SIGUSR1);
  ASSERT_TRUE(
      Until([this] { return Out(0) == "ready\nusr1\nusr1\n" && Out(1) == "ready\nusr1\nusr1\n"; }));
  LauncherSends(SIGUSR2);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(0), "ready\nusr1\nusr1\nusr2\n");
}

TEST_F(UserSignalsTest, AHelperGoesOn) {
  Start(MeetingPart(
      2, 0,
      "ask() {\n"
      "  exec 5<>/dev/tcp/127.0.0.1/$HOROVOD_GLOO_RENDEZVOUS_PORT || exit 1\n"
      "  printf 'GET /s/key HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 0\\r\\n\\r\\n' >&5\n"
      "  read -r -n 4 answer <&5; echo \"$answer\"; exec 5>&-\n"
      "}\n"
      "trap : USR2; [ $RANK = 1 ] || { trap ask USR2; ask; }; while :; do sleep 0.02; done"));
  ASSERT_TRUE(Until([this] { return Out() == "HTTP\n"; }));
  const pid_t helper = HelperPid("dtrain-store");
  ASSERT_GT(helper, 0);
  auto pidfd = os::OpenPidfd(helper);
  ASSERT_TRUE(pidfd.ok());
  AnotherSends("USR1", helper);
  AnotherSends("USR2", helper);
  LauncherSends(SIGUSR2);  // a helper that had to be started anew would have another pid
  ASSERT_TRUE(Until([this] { return Out() == "HTTP\nHTTP\n"; }));
  EXPECT_FALSE(Gone(pidfd->get(), std::chrono::milliseconds(0)));
  EXPECT_EQ(HelperPid("dtrain-store"), helper);
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

}  // namespace
}  // namespace dtrain::shepherd
