// SPDX-License-Identifier: Apache-2.0
// A program as the agent's user: what somebody has who took the agent over.
#include <netinet/in.h>
#include <sys/resource.h>

#include "tests/component/spawner/harness.h"

namespace dtrain::spawner {
namespace {

using ::testing::HasSubstr;

#ifdef __SANITIZE_ADDRESS__
constexpr int64_t kMayGrow = 300 << 10;  // kB; it keeps what was freed
#else
constexpr int64_t kMayGrow = 1024;
#endif

class AttackTest : public SpawnerFixture {
 protected:
  void SetUp() override {
    SpawnerFixture::SetUp();
    if (base_.empty()) return;
    Start();
    agent_ = Agent();
    before_ = Descriptors() - 1;
  }
  void TearDown() override {
    if (pidfd_ && !IsSkipped()) Settle();
    SpawnerFixture::TearDown();
  }
  // Nothing of all that is kept, and nothing is done any more.
  void Settle() {
    agent_ = AgentEnd();
    agent_ = Agent();
    EXPECT_TRUE(agent_.List().empty());
    agent_ = AgentEnd();
    EXPECT_EQ(SettledDescriptors(before_), before_);
    const int64_t turns = Status("voluntary_ctxt_switches");
    EXPECT_FALSE(IsReadable(pidfd_.get(), 300)) << "it has ended\n" << Log();
    EXPECT_LE(Status("voluntary_ctxt_switches"), turns + 1) << "it is idle";
  }
  template <typename T>
  void ExpectBreach(const T& request, const std::vector<int>& fds, const std::string& why) {
    const Refused refused = agent_.Ask(request, fds).template As<Refused>();
    EXPECT_THAT(refused.words, HasSubstr(why));
    EXPECT_THAT(Log(),
                HasSubstr(absl::StrCat("audit: refused: stage ", static_cast<int>(refused.stage),
                                       ", ", refused.words)));
  }

  void EndAll() {
    const auto jobs = agent_.List();
    for (const JobEntry& job : jobs) ASSERT_TRUE(agent_.Send(Kill(job.name)));
    for (size_t ended = 0; ended < jobs.size();) {
      const Packet packet = agent_.ReadPacket();
      ASSERT_NE(packet.bytes, "");
      ended += packet.header().type == Type::kEnded;
    }
  }

  // The number that the next descriptor of the spawner gets.
  rlim_t LowestFree() const {
    rlim_t number = 0;
    while (std::filesystem::is_symlink(absl::StrCat("/proc/", pid_, "/fd/", number))) ++number;
    return number;
  }

  AgentEnd agent_;
  size_t before_ = 0;
};

TEST_F(AttackTest, OthersAreNotTheAgent) {
  for (const auto& [user, uid] : users_) {
    if (user == "dtrain") continue;
    EXPECT_FALSE(Connect(uid)) << user;
  }
  UniqueFd root = Connect(0);  // whom no mode of a file holds off
  ASSERT_TRUE(root);
  EXPECT_EQ(AgentEnd(std::move(root)).ReadPacket().bytes, "");
  // Nor is there a second one.
  EXPECT_EQ(AgentEnd(Connect(users_.at("dtrain"))).ReadPacket().bytes, "");
  EXPECT_THAT(Log(), HasSubstr("audit: refused: a connection of uid 0: "));
  EXPECT_THAT(Log(), HasSubstr("there is one"));
  EXPECT_TRUE(agent_.List().empty()) << "which still is served";
}

TEST_F(AttackTest, RootAndSystemUsersAreNotStarted) {
  for (const char* account : {"root", "system"}) {
    EXPECT_EQ(agent_.AskAndBeRefused(ByAccount("a", account)).stage, Stage::kPolicy);
  }
  for (const uid_t uid : {0, 999}) {
    auto [accepted, client] = UserConnection(uid);
    EXPECT_EQ(agent_.AskAndBeRefused(ByConnection("a"), {accepted.get()}).stage, Stage::kPolicy);
  }
}

TEST_F(AttackTest, WhatIsNoUsersConnectionProvesNothing) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd a(pair[0]), b(pair[1]);
  ExpectBreach(ByConnection("a"), {a.get()}, "not an accepted connection");
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  const UniqueFd reader(pipes[0]), writer(pipes[1]);
  ExpectBreach(ByConnection("a"), {reader.get()}, "not a unix stream");
  const UniqueFd tcp(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ExpectBreach(ByConnection("a"), {tcp.get()}, "not a unix stream");
  const UniqueFd datagrams(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ExpectBreach(ByConnection("a"), {datagrams.get()}, "not a unix stream");
  ExpectBreach(ByConnection("a"), {users_socket_.get()}, "");  // it listens
}

// alice has a socket on which she listens, as many programs do. Whoever connects to it has an end
// of which SO_PEERCRED says that alice is there. With and without a name of its own.
TEST_F(AttackTest, AConnectionToAUserIsNotOneFromHer) {
  UniqueFd hers;
  std::filesystem::create_directories(base_ + "/hers");
  ASSERT_EQ(chmod((base_ + "/hers").c_str(), 0777), 0);
  {
    const As as(users_.at("alice"));
    hers = ListenAt(base_ + "/hers/socket", SOCK_STREAM);
  }
  for (const bool named : {false, true}) {
    const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    std::optional<As> as(std::in_place, users_.at("dtrain"));
    if (named) {
      sockaddr_un own = {};
      own.sun_family = AF_UNIX;
      memcpy(own.sun_path, (base_ + "/hers/own").c_str(), base_.size() + 10);
      ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
    }
    ASSERT_TRUE(ConnectTo(fd.get(), base_ + "/hers/socket"));
    ucred peer = {};
    socklen_t size = sizeof(peer);
    ASSERT_EQ(getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size), 0);
    ASSERT_EQ(peer.uid, users_.at("alice"));
    as.reset();
    ExpectBreach(ByConnection("a"), {fd.get()}, "not an accepted connection");
  }
}

// A TCP connection with bytes that nobody reads, whose close therefore takes a minute.
std::pair<UniqueFd, UniqueFd> SlowToClose() {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  EXPECT_EQ(bind(listener.get(), address, size), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(getsockname(listener.get(), address, &size), 0);
  UniqueFd slow(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(slow.get(), address, size), 0);
  UniqueFd other(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const linger minute = {1, 60};
  EXPECT_EQ(setsockopt(slow.get(), SOL_SOCKET, SO_LINGER, &minute, sizeof(minute)), 0);
  const std::string bytes(1 << 20, 'x');
  while (send(slow.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  return {std::move(slow), std::move(other)};
}

// With whatever it comes, and however many there are.
TEST_F(AttackTest, WhatTakesLongToCloseKeepsNobodyWaiting) {
  std::vector<UniqueFd> others;
  for (const int copies : {1, 4, 5, 253}) {
    auto [slow, other] = SlowToClose();
    others.push_back(std::move(other));
    const std::vector<int> given(static_cast<size_t>(copies), slow.get());
    // Meanwhile it reads nothing: so ours, which is closed, is not the last one.
    ASSERT_TRUE(os::SendSignal(pidfd_.get(), SIGSTOP).ok());
    ASSERT_TRUE(agent_.Send(ByConnection("a"), given));
    slow = UniqueFd();
    ASSERT_TRUE(os::SendSignal(pidfd_.get(), SIGCONT).ok());
    EXPECT_STRNE(agent_.ReadAnswer().As<Refused>().words, "");
    ASSERT_EQ(agent_.Ask(Header{kVersion, Type::kAlive, 9}).header().type, Type::kDone);
  }
}

// Without descriptors for a pipe and a pidfd it can make no child that closes it.
TEST_F(AttackTest, WhatTakesLongToCloseIsKeptWhileNoChildCanBeMade) {
  auto [slow, other] = SlowToClose();
  ASSERT_TRUE(os::SendSignal(pidfd_.get(), SIGSTOP).ok());
  ASSERT_TRUE(agent_.Send(ByConnection("a"), {slow.get()}));
  slow = UniqueFd();
  rlimit before{};
  ASSERT_EQ(prlimit(pid_, RLIMIT_NOFILE, nullptr, &before), 0);
  const rlimit low = {LowestFree() + 1, before.rlim_max};  // room for what is given
  ASSERT_EQ(prlimit(pid_, RLIMIT_NOFILE, &low, nullptr), 0);
  ASSERT_TRUE(os::SendSignal(pidfd_.get(), SIGCONT).ok());
  EXPECT_THAT(agent_.ReadAnswer().As<Refused>().words, HasSubstr("not a unix stream"));
  ASSERT_EQ(agent_.Ask(Header{kVersion, Type::kAlive, 9}).header().type, Type::kDone);
  EXPECT_EQ(Descriptors(), before_ + 2) << "the agent's connection, and what it has given";
  ASSERT_EQ(prlimit(pid_, RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_EQ(SettledDescriptors(before_ + 1), before_ + 1) << "it has tried again";
}

TEST_F(AttackTest, AConnectionStartsOneJobWhileItsUserIsThere) {
  auto [accepted, client] = UserConnection(users_.at("alice"));
  const UniqueFd copy(dup(accepted.get()));
  const Spawned spawned = agent_.Ask(ByConnection("a"), {accepted.get()}).As<Spawned>();
  ExpectBreach(ByConnection("b"), {accepted.get()}, "has started a job before");
  ExpectBreach(ByConnection("b"), {copy.get()}, "has started a job before");
  agent_.Ask(Kill(spawned.name));
  EXPECT_STREQ(agent_.ReadEvent().As<Ended>().name.job, "a");
  ExpectBreach(ByConnection("b"), {accepted.get()}, "has started a job before");
  auto [other, gone] = UserConnection(users_.at("alice"));
  gone.Reset();
  ExpectBreach(ByConnection("b"), {other.get()}, "has gone");
}

// The spawner remembers so many connections only: those of whom it refuses push out none.
TEST_F(AttackTest, AConnectionThatPolicyRefusesIsNotRemembered) {
  auto [accepted, client] = UserConnection(users_.at("dtrain"));
  for (int i = 0; i < 2; ++i) {
    const Packet answer = agent_.Ask(ByConnection("a"), {accepted.get()});
    EXPECT_EQ(answer.As<Refused>().stage, Stage::kPolicy) << answer.As<Refused>().words;
  }
}

TEST_F(AttackTest, AFloodOfOneUserLeavesRoomForAnother) {
  for (int i = 0; i < 128; ++i)
    ASSERT_TRUE(agent_.Send(ByAccount(absl::StrCat("m", i), "mallory")));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(agent_.Send(ByAccount(absl::StrCat("a", i), "alice")));
  int alices = 0;
  for (int i = 0; i < 148; ++i) {
    const Packet packet = agent_.ReadAnswer();
    if (packet.header().type != Type::kSpawned) continue;
    alices += packet.As<Spawned>().name.job[0] == 'a';
  }
  EXPECT_EQ(alices, 20);
  EndAll();
}

TEST_F(AttackTest, BadRequestsAreRefused) {
  SpawnRequest request = ByAccount("a", "alice");
  memcpy(request.job, "../..", 6);
  ExpectBreach(request, {}, "not plain");
  request = ByAccount("a", "alice");
  memcpy(request.account, "../etc", 7);
  ExpectBreach(request, {}, "not plain");
  KillRequest kill;
  memcpy(kill.name.job, "..", 3);
  ExpectBreach(kill, {}, "not plain");
  ExpectBreach(ByAccount("a", "alice"), {0}, "without descriptors");
  ExpectBreach(Header{kVersion, Type::kList, 1}, {0, 0, 0}, "nobody asked for");
  ExpectBreach(Header{kVersion, Type::kNonce, 1}, {}, "unknown type");
  const std::string cut(sizeof(SpawnRequest) - 1, '\0');
  ASSERT_TRUE(agent_.SendBytes(cut.data(), cut.size()));
  EXPECT_EQ(agent_.ReadAnswer().As<Refused>().stage, Stage::kRequest);
  const std::string huge(64 << 10, 'x');
  ASSERT_TRUE(agent_.SendBytes(huge.data(), huge.size()));
  EXPECT_EQ(agent_.ReadAnswer().As<Refused>().stage, Stage::kRequest);
  // More of them than it has room for.
  ASSERT_TRUE(agent_.SendBytes(huge.data(), 8, std::vector<int>(200, 0)));
  EXPECT_EQ(agent_.ReadAnswer().As<Refused>().stage, Stage::kRequest);
  EXPECT_TRUE(agent_.List().empty());
}

TEST_F(AttackTest, SixteenBreachesInARowAreTheEnd) {
  for (int i = 0; i < kMostBreaches; ++i) ASSERT_TRUE(agent_.SendBytes("x", 1));
  for (int i = 0; i < kMostBreaches; ++i) agent_.ReadAnswer().As<Refused>();
  EXPECT_EQ(agent_.ReadAnswer().bytes, "");
  EXPECT_THAT(Log(), HasSubstr("breaks the rules"));
}

TEST_F(AttackTest, AHundredThousandRequests) {
  const int64_t memory = Status("VmRSS");
  const size_t log = Log().size();
  for (int i = 0; i < 100'000; i += 50) {
    for (int j = 0; j < 50; ++j) {
      const bool breach = j % 10 != 0;
      Header header{kVersion, breach ? static_cast<Type>(200 + j) : Type::kAlive, 1};
      ASSERT_TRUE(agent_.Send(
          header, breach && j % 2 == 0 ? std::vector<int>{0, 1, 2} : std::vector<int>{}));
    }
    for (int j = 0; j < 50; ++j) ASSERT_NE(agent_.ReadAnswer().bytes, "");
  }
  EXPECT_LE(Status("VmRSS"), memory + kMayGrow) << "kB";
  EXPECT_LT(Log().size() - log, 1u << 20) << "what is refused beyond some per second is counted";
  // With the first one of another second.
  for (int i = 0; i < 300 && Log().find(" more\n") == std::string::npos; ++i) {
    ASSERT_TRUE(agent_.SendBytes("x", 1));
    ASSERT_TRUE(agent_.Send(Header{kVersion, Type::kAlive, 1}));
    ASSERT_NE(agent_.ReadAnswer().bytes, "");
    ASSERT_NE(agent_.ReadAnswer().bytes, "");
    poll(nullptr, 0, 10);
  }
  EXPECT_THAT(Log(), ::testing::ContainsRegex("audit: refused [0-9]+ more"));
}

TEST_F(AttackTest, AnswersThatNobodyReadsAreNotKept) {
  const int64_t memory = Status("VmRSS");
  const Header list{kVersion, Type::kList, 1};
  // Also while jobs are being started, which end with the connection.
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(agent_.Send(ByAccount(absl::StrCat("j", i), "system")));
  }
  // Until its end is noticed.
  int sent = 0;
  while (sent < 200'000 && send(agent_.fd(), &list, sizeof(list), MSG_NOSIGNAL) > 0) ++sent;
  EXPECT_LT(sent, 200'000);
  EXPECT_LE(Status("VmRSS"), memory + kMayGrow) << "kB";
  EXPECT_THAT(Log(), HasSubstr("write to the agent"));
}

TEST_F(AttackTest, ManyUsersAtOnceWaitAndAreDroppedWithTheAgent) {
  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(agent_.Send(ByAccount(absl::StrCat("j", i), i % 2 ? "alice" : "mallory")));
  int busy = 0, spawned = 0;
  for (int i = 0; i < 100; ++i) {
    const Packet packet = agent_.ReadAnswer();
    spawned += packet.header().type == Type::kSpawned;
    busy += packet.header().type == Type::kRefused && packet.As<Refused>().stage == Stage::kBusy;
  }
  EXPECT_EQ(spawned, 64) << "32 of each";
  EXPECT_EQ(busy, 36);
  for (int i = 200; i < 210; ++i)
    ASSERT_TRUE(agent_.Send(ByAccount(absl::StrCat("j", i), "system")));
  agent_ = AgentEnd();
  agent_ = Agent();
  EXPECT_EQ(agent_.List().size(), 64u);
  EndAll();
}

}  // namespace
}  // namespace dtrain::spawner
