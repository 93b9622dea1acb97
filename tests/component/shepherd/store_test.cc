// SPDX-License-Identifier: Apache-2.0
// The key-value server of the ranks, on the node that has it.
#include <filesystem>
#include <system_error>

#include "store_fixture.h"

namespace dtrain::shepherd {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class ShepherdStoreTest : public StoreFixture {
 protected:
  // In the script, ask VERB KEY VALUE makes a request and prints what came back.
  v1::JobPart Asking(int workers, int others, const std::string& script) {
    return MeetingPart(workers, others,
                       "ask() {\n"
                       "  exec 5<>/dev/tcp/127.0.0.1/$HOROVOD_GLOO_RENDEZVOUS_PORT || return 1\n"
                       "  printf '%s /s/%s HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: "
                       "%d\\r\\n\\r\\n%s' $1 $2 ${#3} \"$3\" >&5\n"
                       "  cat <&5; exec 5>&-\n"
                       "}\n" +
                           script);
  }
  pid_t ServerPid() const { return HelperPid("dtrain-store"); }
};

TEST_F(ShepherdStoreTest, ARankPutsAndAnotherGets) {
  Start(Asking(2, 0,
               "if [ $RANK = 0 ]; then ask PUT key hello; exit 0; fi\n"
               "until ask GET key '' | tee /dev/fd/2 | grep -q hello; do :; done; echo got"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(Out(0), HasSubstr("HTTP/1.1 200 OK\r\n"));
  EXPECT_EQ(Out(1), "got\n");
  EXPECT_THAT(Err(1), HasSubstr("Content-Length: 5\r\n"));
  EXPECT_THAT(failures_, IsEmpty());
}

// Its own ranks have ended, but others may go on asking.
TEST_F(ShepherdStoreTest, ItGoesOnUntilTheLauncherSaysThatAllIsOver) {
  Start(Asking(1, 1, "ask PUT key hello"));
  ASSERT_TRUE(Until([this] { return exits_.size() == 1; }));
  EXPECT_NE(ServerPid(), 0);
  EXPECT_FALSE(finished_);
  Stop(5000);
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(failures_, IsEmpty());
}

TEST_F(ShepherdStoreTest, UnusedItHoldsUpNothing) {
  Start(Asking(1, 1, "exit 0"));
  ASSERT_TRUE(UntilFinished());
}

TEST_F(ShepherdStoreTest, WithoutTheSocketNothingStarts) {
  v1::JobPart part = Asking(1, 1, "echo started");
  held_.clear();
  Start(part);
  ASSERT_TRUE(Until([this] { return !failures_.empty(); }));
  EXPECT_THAT(failures_[0].message(), HasSubstr("the agent passed no socket for port"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_FALSE(started_.has_value());
}

TEST_F(ShepherdStoreTest, ALostAgentEndsIt) {
  Start(Asking(1, 1, "ask PUT key hello"));
  ASSERT_TRUE(Until([this] { return exits_.size() == 1; }));
  Leave();
  ASSERT_TRUE(ShepherdExited());
}

TEST_F(ShepherdStoreTest, WhatIsNoHttpIsAnsweredOrClosedAndHurtsNobody) {
  Start(Asking(
      2, 0,
      "if [ $RANK = 1 ]; then\n"
      "  for i in 1 2 3; do exec 6<>/dev/tcp/127.0.0.1/$HOROVOD_GLOO_RENDEZVOUS_PORT\n"
      "    head -c 100000 /dev/urandom >&6 2>/dev/null; done; exit 0\n"
      "fi\n"
      "for i in 1 2 3 4 5; do ask PUT key$i v; ask GET key$i ''; ask DELETE key$i ''; done"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].exit_code(), 0);
  size_t answers = 0;
  for (size_t at = 0; (at = Out(0).find("200 OK", at)) != std::string::npos; ++at) ++answers;
  EXPECT_EQ(answers, 15u);
  EXPECT_THAT(failures_, IsEmpty());
}

TEST_F(ShepherdStoreTest, OneThatDiedAfterUseIsAFailureWhenItIsWanted) {
  Start(Asking(1, 1, "ask PUT key hello; read -r x < <(sleep 60)"));
  ASSERT_TRUE(Until([this] { return Out().find("200 OK") != std::string::npos; }));
  ASSERT_EQ(kill(ServerPid(), SIGKILL), 0);
  const os::UniqueFd client = Connect(part_.network().rendezvous_port());
  ASSERT_TRUE(Until([this] { return !failures_.empty(); }));
  EXPECT_EQ(failures_[0].exit_code(), 203);
  EXPECT_THAT(failures_[0].message(), HasSubstr("was killed by signal 9"));
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(failures_, SizeIs(1));
}

// What it has inherited is the launcher's connection.
TEST_F(ShepherdStoreTest, ItsLogIsTheShepherdsAlsoWhenThatIsKeptForAnotherAgent) {
  Start(Asking(1, 1, "ask PUT key hello; read -r x < <(sleep 60)"));
  ASSERT_TRUE(Until([this] { return Out().find("200 OK") != std::string::npos; }));
  const std::string log = absl::StrCat(::testing::TempDir(), "/", job_id_, ".log");
  socket_path_ = absl::StrCat(log, ".sock");
  const os::UniqueFd bound(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un name = SocketName();
  ASSERT_EQ(bind(bound.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  v1::ShepherdRequest keep;
  keep.mutable_keep_running()->mutable_hello()->set_job_id(job_id_);
  keep.mutable_keep_running()->mutable_hello()->set_lease_ms(60'000);
  keep.mutable_keep_running()->set_log(log);
  ASSERT_TRUE(channel_->Send(keep.SerializeAsString(), bound.get()).ok());
  const auto writes_there = [&log](pid_t pid) {
    std::error_code none;
    return std::filesystem::equivalent(absl::StrCat("/proc/", pid, "/fd/2"), log, none);
  };
  const TimePoint end = Clock::now() + kLimit;
  while (!writes_there(ServerPid()) && Clock::now() < end) poll(nullptr, 0, 5);
  EXPECT_TRUE(writes_there(ServerPid()));
  EXPECT_TRUE(writes_there(shepherd_pid_));
  (void)unlink(log.c_str());
}

}  // namespace
}  // namespace dtrain::shepherd
