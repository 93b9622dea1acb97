// SPDX-License-Identifier: Apache-2.0
// A shepherd as dtrain-spawner starts it: agents come to it, the first one, too.
#include "tests/component/shepherd/harness.h"
#include "tests/support/paths.h"

namespace dtrain::shepherd {
namespace {

class DoorTest : public ShepherdTest {
 protected:
  // For agents of `uid`, with `text` on descriptor 4.
  void StartBehindDoor(const std::string& text) {
    socket_path_ = absl::StrCat(::testing::TempDir(), "/", job_id_, ".link");
    os::UniqueFd listening(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un name = SocketName();
    ASSERT_EQ(bind(listening.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
    ASSERT_EQ(listen(listening.get(), 8), 0);
    auto order = os::Pipe();
    ASSERT_TRUE(order.ok());
    ASSERT_EQ(write(order->second.get(), text.data(), text.size()),
              static_cast<ssize_t>(text.size()));
    order->second.Reset();
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      // First above both targets.
      const int door = fcntl(listening.get(), F_DUPFD, 10),
                said = fcntl(order->first.get(), F_DUPFD, 10);
      if (dup2(door, 3) != 3 || dup2(said, 4) != 4) _exit(99);
      os::CloseRange(5, os::kEveryDescriptor);
      _exit(RunShepherd(3, ProgramPath("dtrain-agent")));
    }
    shepherd_pid_ = pid;
    shepherd_ = *os::OpenPidfd(pid);
  }
  ~DoorTest() override { (void)unlink(socket_path_.c_str()); }
  static std::string OrderFor(uid_t uid, int lease_ms) {
    return absl::StrCat("job j\nattempt 0\nlease_ms ", lease_ms, "\ngrace_ms 0\nagent_uid ", uid,
                        "\nagent_gid 0\n");
  }
  os::UniqueFd Come() {
    os::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un name = SocketName();
    const bool here =
        connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0;
    return here ? std::move(fd) : os::UniqueFd();
  }
  void GiveWork(v1::JobPart part) {
    part_ = part;
    v1::ShepherdRequest keep;
    keep.mutable_keep_running()->mutable_hello()->set_job_id(job_id_);
    keep.mutable_keep_running()->mutable_hello()->set_lease_ms(60000);
    Send(keep);
    AttachLauncher();
    ReadLogs();
    v1::JobRequest start;
    *start.mutable_start() = std::move(part);
    Send(start);
  }
};

TEST_F(DoorTest, TheAgentComesGivesWorkAndMayComeAgain) {
  StartBehindDoor(OrderFor(geteuid(), 60000));
  Listen(Come());
  v1::JobPart part = Shell(1, "echo before; read line; echo $line; exit 5");
  part.mutable_workers(0)->set_stdin_mode(v1::STDIN_MODE_PIPE);
  GiveWork(std::move(part));
  ASSERT_TRUE(UntilStarted());
  ASSERT_TRUE(Until([&] { return Out(0) == "before\n"; }));
  Leave();
  ASSERT_TRUE(Adopt());
  ASSERT_EQ(account_->report().job().ranks_size(), 1);
  EXPECT_EQ(account_->report().job().ranks(0).pid(), started_->workers(0).pid());
  Stdin(0, "after\n", true);
  ASSERT_TRUE(Until([&] { return finished_; }));
  EXPECT_EQ(exits_[0].exit_code(), 5);
  EXPECT_EQ(Out(0), "before\nafter\n");
  Release();
  EXPECT_TRUE(ShepherdExited());
}

TEST_F(DoorTest, OthersAreTurnedAwayRootToo) {
  StartBehindDoor(OrderFor(geteuid() + 12345, 1000));
  os::UniqueFd fd = Come();
  ASSERT_TRUE(fd);
  pollfd ended{fd.get(), POLLIN, 0};
  ASSERT_EQ(poll(&ended, 1, 20000), 1);
  char byte;
  EXPECT_EQ(read(fd.get(), &byte, 1), 0);
  EXPECT_TRUE(ShepherdExited()) << "without an agent it ends with the lease";
}

TEST_F(DoorTest, AnAgentThatGoesWithoutAJobIsTheEnd) {
  StartBehindDoor(OrderFor(geteuid(), 60000));
  os::UniqueFd fd = Come();
  ASSERT_TRUE(fd);
  fd.Reset();
  EXPECT_TRUE(ShepherdExited());
}

TEST_F(DoorTest, WithoutAnOrderThereIsNoShepherd) {
  StartBehindDoor("lease_ms 1000\n");
  const auto status = os::WaitAndReap(shepherd_.get());
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->code, 2);
  shepherd_pid_ = 0;
}

}  // namespace
}  // namespace dtrain::shepherd
