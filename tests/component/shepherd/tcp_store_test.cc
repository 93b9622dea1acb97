// SPDX-License-Identifier: Apache-2.0
// PyTorch's store (--agent-store), on the node that serves it, spoken to over real connections.
#include <sys/time.h>

#include <cstring>

#include "store_fixture.h"

namespace dtrain::shepherd {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::string Number64(uint64_t number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof(number));
}
std::string Sized(const std::string& text) { return Number64(text.size()) + text; }
// Of the classic dialect.
std::string AddOne(const std::string& key) { return "\3" + Sized(key) + Number64(1); }
std::string SetTo(const std::string& key, const std::string& value) {
  return std::string(1, '\0') + Sized(key) + Sized(value);
}
std::string GetOf(const std::string& key) { return "\2" + Sized(key); }
std::string WaitFor(const std::string& key) { return "\5" + Number64(1) + Sized(key); }

// What a sanitizer keeps of freed memory and of its own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kInstrumented = size_t{768} << 20;
#else
constexpr size_t kInstrumented = 0;
#endif

class TorchStoreTest : public StoreFixture {
 protected:
  v1::JobPart Serving(int workers = 1, int others = 0,
                      const std::string& script = "read -r x < <(sleep 60)") {
    v1::JobPart part = MeetingPart(workers, others, script);
    part.set_agent_store(true);
    part.mutable_network()->set_master_port(HoldPort());
    return part;
  }
  os::UniqueFd Come() {
    os::UniqueFd client = Connect(part_.network().master_port());
    const timeval limit{kInstrumented > 0 ? 120 : 20, 0};  // it may have megabytes to do first
    setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    return client;
  }
  static bool Say(const os::UniqueFd& client, const std::string& bytes) {
    return send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // "": it was closed.
  static std::string Hear(const os::UniqueFd& client, size_t size) {
    std::string out(size, '\0');
    const ssize_t got = recv(client.get(), out.data(), size, MSG_WAITALL);
    out.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return out;
  }
  // The store counts as used, and works.
  void Use() {
    const os::UniqueFd client = Come();
    ASSERT_TRUE(Say(client, AddOne("init/")));
    ASSERT_EQ(Hear(client, 8).size(), 8u);
  }
  bool Warned(const std::string& text) {
    return Until([this, &text] { return testing::Matches(Contains(HasSubstr(text)))(warnings_); });
  }
  pid_t ServerPid() const { return HelperPid("dtrain-tcpstore"); }
  size_t ServerMemory() const {
    std::ifstream file(absl::StrCat("/proc/", ServerPid(), "/statm"));
    size_t size = 0, resident = 0;
    file >> size >> resident;
    return resident * static_cast<size_t>(getpagesize());
  }
  void EndIt() {
    Stop(0);
    ASSERT_TRUE(UntilFinished());
  }
};

TEST_F(TorchStoreTest, OneWaitsUntilAnotherHasPut) {
  Start(Serving());
  ASSERT_TRUE(UntilStarted());
  const os::UniqueFd one = Come(), silent = Come(), two = Come();
  ASSERT_TRUE(Say(one, AddOne("init/")));
  EXPECT_EQ(Hear(one, 8), Number64(1));
  ASSERT_TRUE(Say(two, AddOne("init/")));
  EXPECT_EQ(Hear(two, 8), Number64(2));
  ASSERT_TRUE(Say(one, WaitFor("/k")));
  ASSERT_TRUE(Say(two, SetTo("/k", "value")));
  EXPECT_EQ(Hear(one, 1), std::string("\0", 1));
  ASSERT_TRUE(Say(one, GetOf("/k")));
  EXPECT_EQ(Hear(one, 13), Sized("value"));
  EndIt();
  EXPECT_THAT(failures_, IsEmpty());
  EXPECT_THAT(warnings_, testing::Not(Contains(HasSubstr("refused"))));
}

TEST_F(TorchStoreTest, BothDialectsMeetByteByByte) {
  Start(Serving());
  ASSERT_TRUE(UntilStarted());
  const os::UniqueFd old = Come(), recent = Come();
  const std::string magic("\x00\xCE\xF7\x85\x3C", 5);
  for (const char byte : magic + "\xD" + "abcd" + "\x1" + Sized("/k") + Sized("v")) {
    ASSERT_TRUE(Say(recent, std::string(1, byte)));
  }
  EXPECT_EQ(Hear(recent, 4), "abcd");
  for (const char byte : WaitFor("/k")) ASSERT_TRUE(Say(old, std::string(1, byte)));
  EXPECT_EQ(Hear(old, 1), std::string("\0", 1));
  for (const char byte : GetOf("/k")) ASSERT_TRUE(Say(old, std::string(1, byte)));
  EXPECT_EQ(Hear(old, 9), Sized("v"));
  EndIt();
}

TEST_F(TorchStoreTest, RanksAreToldOfItAndUnusedItCostsNothing) {
  Start(
      Serving(1, 1, "echo $TORCHELASTIC_USE_AGENT_STORE $MASTER_PORT $TORCHELASTIC_RESTART_COUNT"));
  ASSERT_TRUE(Until([this] { return exits_.size() == 1; }));
  EXPECT_EQ(ServerPid(), 0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), absl::StrCat("True ", part_.network().master_port(), " 0\n"));
}

TEST_F(TorchStoreTest, ItGoesOnUntilTheLauncherSaysThatAllIsOver) {
  Start(Serving(1, 1, "exec 5<>/dev/tcp/127.0.0.1/$MASTER_PORT; printf '\\6' >&5; head -c8 <&5"));
  ASSERT_TRUE(Until([this] { return exits_.size() == 1; }));
  EXPECT_NE(ServerPid(), 0);
  EXPECT_FALSE(finished_);
  Use();
  EndIt();
  EXPECT_THAT(failures_, IsEmpty());
}

TEST_F(TorchStoreTest, WithoutTheSocketNothingStarts) {
  v1::JobPart part = Serving();
  held_.erase(part.network().master_port());
  Start(part);
  ASSERT_TRUE(Until([this] { return !failures_.empty(); }));
  EXPECT_THAT(failures_[0].message(),
              HasSubstr(absl::StrCat("PyTorch's store (--agent-store): the agent passed no socket "
                                     "for port ",
                                     part.network().master_port())));
  ASSERT_TRUE(UntilFinished());
}

TEST_F(TorchStoreTest, WhoSpeaksAnotherProtocolIsClosedAndNamed) {
  Start(Serving());
  ASSERT_TRUE(UntilStarted());
  const os::UniqueFd good = Come();
  ASSERT_TRUE(Say(good, AddOne("init/")));
  ASSERT_EQ(Hear(good, 8).size(), 8u);
  for (const std::string talk :
       {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01", "\x3\xff\xff\xff\xff\xff\xff\xff\xff"}) {
    const os::UniqueFd bad = Come();
    ASSERT_TRUE(Say(bad, talk));
    EXPECT_EQ(Hear(bad, 1), "");
  }
  EXPECT_TRUE(
      Warned("PyTorch's store (--agent-store) refused a client at 127.0.0.1 and closed its "
             "connection: it sent operation 71"));
  EXPECT_TRUE(Warned("it sent ADD with a key of 18446744073709551615 bytes"));
  ASSERT_TRUE(Say(good, AddOne("init/")));
  EXPECT_EQ(Hear(good, 8), Number64(2));
  EndIt();
  EXPECT_THAT(failures_, IsEmpty());
}

// Nor does it hold up the others.
TEST_F(TorchStoreTest, AClientThatNeverReadsDoesNotMakeMemoryGrow) {
  Start(Serving());
  ASSERT_TRUE(UntilStarted());
  const os::UniqueFd good = Come(), deaf = Come();
  ASSERT_TRUE(Say(good, SetTo("/k", std::string(8 << 20, 'x'))));
  const timeval moment{1, 0};
  setsockopt(deaf.get(), SOL_SOCKET, SO_SNDTIMEO, &moment, sizeof(moment));
  std::string many;
  for (int i = 0; i < 1000; ++i) many += GetOf("/k");
  size_t said = 0;
  while (said < 2000 && Say(deaf, many)) ++said;
  EXPECT_LT(said, 2000u) << "it went on listening";
  EXPECT_LT(ServerMemory(), (size_t{80} << 20) + kInstrumented);
  ASSERT_TRUE(Say(good, AddOne("/n")));
  EXPECT_EQ(Hear(good, 8), Number64(1));
  EndIt();
}

TEST_F(TorchStoreTest, AClientThatReadsLateGetsAllOfItInOrder) {
  Start(Serving());
  ASSERT_TRUE(UntilStarted());
  const os::UniqueFd good = Come(), late = Come();
  const std::string value(1 << 20, 'x');
  ASSERT_TRUE(Say(good, SetTo("/k", value) + AddOne("/n")));
  ASSERT_EQ(Hear(good, 8), Number64(1));
  std::string many;
  for (int i = 0; i < 50; ++i) many += GetOf("/k") + AddOne("/count");
  ASSERT_TRUE(Say(late, many));
  ASSERT_TRUE(Say(good, AddOne("/n")));
  ASSERT_EQ(Hear(good, 8), Number64(2));
  for (uint64_t i = 1; i <= 50; ++i) {
    ASSERT_EQ(Hear(late, 8 + value.size()), Sized(value)) << i;
    ASSERT_EQ(Hear(late, 8), Number64(i));
  }
  EndIt();
}

TEST_F(TorchStoreTest, AClientThatDoesNotReadTheNewsThatItAskedForIsClosed) {
  Start(Serving());
  ASSERT_TRUE(UntilStarted());
  const os::UniqueFd good = Come(), deaf = Come();
  ASSERT_TRUE(Say(deaf, "\7" + Sized("/k")));
  ASSERT_EQ(Hear(deaf, 1), "\3");
  for (uint64_t i = 1; i <= 12; ++i) {
    ASSERT_TRUE(Say(good, SetTo("/k", std::string(8 << 20, 'x')) + AddOne("/n")));
    ASSERT_EQ(Hear(good, 8), Number64(i));
  }
  EXPECT_TRUE(Warned("it does not read its replies"));
  EXPECT_LT(ServerMemory(), (size_t{200} << 20) + kInstrumented);
  EndIt();
}

// Requests that never become whole, of connections that may be anybody's on the job's other nodes.
TEST_F(TorchStoreTest, WhatIsOnItsWayHasAnEnd) {
  Start(Serving());
  ASSERT_TRUE(UntilStarted());
  const std::string begun =
      std::string(1, '\0') + Sized("/k") + Number64(32 << 20) + std::string((32 << 20) - 1, 'x');
  std::vector<os::UniqueFd> clients;
  for (int i = 0; i < 10; ++i) {
    clients.push_back(Come());
    (void)Say(clients.back(), begun);  // it may be closed meanwhile
  }
  EXPECT_TRUE(Warned("all clients together have more under way than"));
  Use();
  EndIt();
  EXPECT_THAT(failures_, IsEmpty());
}

TEST_F(TorchStoreTest, ANodeMayHaveSoManyConnectionsAndTheSilentGoFirst) {
  Start(Serving(2));
  ASSERT_TRUE(UntilStarted());
  constexpr int kMost = 2 * 64 + 64;
  std::vector<os::UniqueFd> clients;
  for (int i = 0; i < kMost; ++i) {
    clients.push_back(Come());
    if (i == 0) continue;  // this one is silent
    ASSERT_TRUE(Say(clients.back(), AddOne("init/")));
    ASSERT_EQ(Hear(clients.back(), 8), Number64(static_cast<uint64_t>(i)));
  }
  const os::UniqueFd more = Come();
  ASSERT_TRUE(Say(more, AddOne("init/")));
  EXPECT_EQ(Hear(more, 8), Number64(kMost));
  EXPECT_EQ(Hear(clients[0], 1), "");
  // Now all have spoken.
  const os::UniqueFd last = Come();
  EXPECT_EQ(Hear(last, 1), "");
  EXPECT_TRUE(Warned("some connections from 127.0.0.1, which has 192 already"));
  EndIt();
  EXPECT_THAT(failures_, IsEmpty());
}

TEST_F(TorchStoreTest, OneThatDiesUnusedIsStartedAgain) {
  Start(Serving());
  ASSERT_TRUE(UntilStarted());
  const os::UniqueFd silent = Come(), bad = Come();
  ASSERT_TRUE(Say(bad, "?"));
  ASSERT_EQ(Hear(bad, 1), "");
  const pid_t first = ServerPid();
  ASSERT_EQ(kill(first, SIGKILL), 0);
  EXPECT_EQ(Hear(silent, 1), "");
  Use();
  EXPECT_NE(ServerPid(), first);
  EndIt();
  EXPECT_THAT(failures_, IsEmpty());
}

TEST_F(TorchStoreTest, OneThatDiesAfterUseIsAFailureAtOnce) {
  Start(Serving());
  ASSERT_TRUE(UntilStarted());
  Use();
  ASSERT_EQ(kill(ServerPid(), SIGKILL), 0);
  ASSERT_TRUE(Until([this] { return !failures_.empty(); }));
  EXPECT_EQ(failures_[0].exit_code(), 203);
  EXPECT_EQ(failures_[0].kind(), v1::NodeFailure::KIND_HELPER);
  EXPECT_THAT(failures_[0].message(),
              HasSubstr("PyTorch's store (--agent-store), a process of dtrain (dtrain-agent "
                        "tcpstore), was killed by signal 9"));
  EndIt();
  EXPECT_THAT(failures_, SizeIs(1));
}

TEST_F(TorchStoreTest, NobodyMissesItWhenTheJobIsBeingEnded) {
  Start(Serving(1, 0,
                "trap 'echo asked; read -r x < <(sleep 60)' TERM; echo ready; "
                "while :; do read -r x < <(sleep 60); done"));
  ASSERT_TRUE(Until([this] { return Out() == "ready\n"; }));
  Use();
  const pid_t server = ServerPid();
  Stop(1000);
  ASSERT_TRUE(Until([this] { return Out() == "ready\nasked\n"; }));
  ASSERT_EQ(kill(server, SIGKILL), 0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(failures_, IsEmpty());
}

TEST_F(TorchStoreTest, ALostAgentEndsIt) {
  Start(Serving());
  ASSERT_TRUE(UntilStarted());
  Use();
  Leave();
  ASSERT_TRUE(ShepherdExited());
}

}  // namespace
}  // namespace dtrain::shepherd
