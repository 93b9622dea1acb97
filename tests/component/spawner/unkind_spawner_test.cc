// SPDX-License-Identifier: Apache-2.0
// RemoteSpawner against a program of root's that is not dtrain-spawner, or a broken one.
#include "common/os/fd.h"
#include "tests/component/spawner/remote_fixture.h"

namespace dtrain::spawn {
namespace {

using spawner::Header;
using spawner::kVersion;
using spawner::Type;
using ::testing::HasSubstr;

// The spawner's end of one connection.
class Fake {
 public:
  explicit Fake(os::UniqueFd fd) : end_(std::move(fd)) {}
  // The next request of that type; signs of life are answered on the way.
  spawner::Packet Next(Type type) {
    for (;;) {
      spawner::Packet packet = end_.ReadPacket();
      EXPECT_FALSE(packet.bytes.empty()) << "no request of type " << static_cast<int>(type);
      if (packet.bytes.empty() || packet.header().type == type) return packet;
      if (packet.header().type == Type::kAlive)
        Say(Header{kVersion, Type::kDone, packet.header().tag});
    }
  }
  template <typename T>
  void Say(const T& packet, const std::vector<int>& fds = {}) {
    EXPECT_TRUE(end_.Send(packet, fds)) << strerror(errno);
  }
  void SayBytes(const std::string& bytes) {
    EXPECT_TRUE(end_.SendBytes(bytes.data(), bytes.size()));
  }
  void SayThatNothingRuns() {
    spawner::Jobs jobs;
    jobs.header.tag = Next(Type::kList).header().tag;
    SayBytes(std::string(reinterpret_cast<const char*>(&jobs), offsetof(spawner::Jobs, entries)));
  }
  // Whether the agent ends it, whatever it says until then.
  bool IsEnded() {
    for (;;) {
      if (!spawner::IsReadable(end_.fd())) return false;
      if (end_.ReadPacket().bytes.empty()) return true;
    }
  }

 private:
  spawner::AgentEnd end_;
};

spawner::Spawned StartOf(uint32_t tag, const std::string& job, uint32_t uid) {
  spawner::Spawned start;
  start.header.tag = tag;
  spawner::Put(job, start.name.job);
  start.name.uid = uid;
  spawner::Put("alice", start.account);
  spawner::Put("/nowhere/link.sock", start.link);
  spawner::Put("/nowhere", start.cgroup);
  return start;
}

class UnkindSpawnerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "an agent believes root alone";
    path_ = absl::StrCat(::testing::TempDir(), "/unkind-", getpid(), ".sock");
    unlink(path_.c_str());  // of a killed run whose process had the same number
    listening_ = spawner::ListenAt(path_, SOCK_SEQPACKET);
    agent_.Connect(path_);
  }
  void TearDown() override { unlink(path_.c_str()); }
  Fake Accept() {
    EXPECT_TRUE(spawner::IsReadable(listening_.get())) << "it has not connected again";
    return Fake(os::UniqueFd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }
  // One that serves, and an order that has come to it.
  Fake Serving(spawner::Packet* order) {
    Fake fake = Accept();
    fake.SayThatNothingRuns();
    EXPECT_TRUE(agent_.WhenReady().ok());
    agent_.Submit({{1001, "alice"}, "j", 0, 1000, 1000});
    *order = fake.Next(Type::kSpawn);
    return fake;
  }

  std::string path_;
  os::UniqueFd listening_;
  RemoteAgent agent_;
};

TEST_F(UnkindSpawnerTest, GarbageEndsTheConnectionAndAnotherIsMade) {
  spawner::Jobs none;
  none.header.tag = 99;
  for (const std::string& bytes :
       {std::string("x"), std::string(8, '\0'), std::string(16384, '\xff'),
        std::string(reinterpret_cast<const char*>(&none), 16)}) {
    Fake fake = Accept();
    (void)fake.Next(Type::kList);
    fake.SayBytes(bytes);
    EXPECT_TRUE(fake.IsEnded()) << bytes.size();
  }
  Fake kind = Accept();
  kind.SayThatNothingRuns();
  EXPECT_TRUE(agent_.WhenReady().ok());
}

TEST_F(UnkindSpawnerTest, AnEndBeforeTheAnswerIsTriedOnceMore) {
  spawner::Packet order;
  { Fake fake = Serving(&order); }
  {
    Fake fake = Accept();
    fake.SayThatNothingRuns();
    EXPECT_EQ(fake.Next(Type::kSpawn).bytes.substr(8), order.bytes.substr(8));
  }
  const absl::Status status = agent_.Started();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has ended meanwhile"));
}

TEST_F(UnkindSpawnerTest, OneThatHasNoRoomIsAskedAgain) {
  spawner::Packet order;
  Fake fake = Serving(&order);
  spawner::Refused busy;
  busy.header.tag = order.header().tag;
  busy.stage = spawner::Stage::kBusy;
  spawner::Put("full", busy.words);
  fake.Say(busy);
  const spawner::Packet again = fake.Next(Type::kSpawn);
  EXPECT_EQ(again.bytes.substr(8), order.bytes.substr(8));
  busy.header.tag = again.header().tag;
  busy.stage = spawner::Stage::kAccount;
  fake.Say(busy);
  EXPECT_THAT(std::string(agent_.Started().message()), HasSubstr("dtrain-spawner: full"));
}

TEST_F(UnkindSpawnerTest, ForeignAnswersEndTheConnection) {
  const auto with = [](auto change) {
    return [change](Fake& fake, uint32_t tag) { change(fake, tag); };
  };
  const std::vector<std::function<void(Fake&, uint32_t)>> rows = {
      with([](Fake& fake, uint32_t tag) {
        fake.Say(Header{kVersion, Type::kDone, tag});
      }),
      with([](Fake& fake, uint32_t tag) {
        fake.Say(Header{kVersion, Type::kDone, tag + 77});
      }),
      with([](Fake& fake, uint32_t tag) { fake.Say(StartOf(tag, "j", 1001)); }),  // no descriptors
      with([](Fake& fake, uint32_t tag) {
        fake.Say(StartOf(tag, "j", 1001), {0, 1, 2});
      }),
      with([](Fake& fake, uint32_t) {
        fake.Say(Header{kVersion, Type::kDone, 0}, {0});
      }),
  };
  for (const auto& row : rows) {
    spawner::Packet order;
    Fake fake = Serving(&order);
    row(fake, order.header().tag);
    EXPECT_TRUE(fake.IsEnded());
    Fake next = Accept();  // of the order, which is made once more
    next.SayThatNothingRuns();
    spawner::Refused refused;
    refused.header.tag = next.Next(Type::kSpawn).header().tag;
    spawner::Put("no", refused.words);
    next.Say(refused);
    EXPECT_THAT(std::string(agent_.Started().message()), HasSubstr("dtrain-spawner: no"));
  }
}

// Descriptors that are none of what they should be, somebody else's job, a link that leads nowhere.
TEST_F(UnkindSpawnerTest, AStartThatIsNoneIsKilled) {
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  const auto self = os::OpenPidfd(getpid());
  const os::UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int pidfd = self->get(), end = pipe->first.get();
  struct Row {
    spawner::Spawned start;
    int first, second;
    std::string why;
  };
  const std::vector<Row> rows = {{StartOf(0, "j", 1001), pidfd, end, "open the folder of /nowhere"},
                                 {StartOf(0, "j", 1001), end, end, "has ended at once"},
                                 {StartOf(0, "j", 1001), pidfd, null.get(), "a pidfd and a pipe"},
                                 {StartOf(0, "j", 1002), pidfd, end, "and not for alice"},
                                 {StartOf(0, "k", 1001), pidfd, end, "and not for alice"}};
  for (auto [start, first, second, why] : rows) {
    spawner::Packet order;
    Fake fake = Serving(&order);
    start.header.tag = order.header().tag;
    fake.Say(start, {first, second});
    EXPECT_THAT(std::string(agent_.Started().message()), HasSubstr(why));
    const spawner::Packet kill = fake.Next(Type::kKill);
    spawner::KillRequest request;
    ASSERT_EQ(kill.bytes.size(), sizeof(request));
    memcpy(static_cast<void*>(&request), kill.bytes.data(), sizeof(request));
    EXPECT_EQ(request.name.uid, start.name.uid);
    EXPECT_STREQ(request.name.job, start.name.job);
  }
}

TEST_F(UnkindSpawnerTest, OneThatDoesNotAnswerIsNotWaitedForForEver) {
  SpawnerLimits limits;
  limits.answer = std::chrono::seconds(4);  // the kind one, too, has to answer within that time
  agent_.Connect(path_, limits);
  { const Fake of_the_one_before = Accept(); }
  Fake silent = Accept();
  (void)silent.Next(Type::kList);
  EXPECT_TRUE(silent.IsEnded());
  Fake kind = Accept();
  kind.SayThatNothingRuns();
  EXPECT_TRUE(agent_.WhenReady().ok());
}

TEST_F(UnkindSpawnerTest, EndsOfUnknownJobsAreNobodys) {
  spawner::Packet order;
  Fake fake = Serving(&order);
  spawner::Ended ended;
  spawner::Put("other", ended.name.job);
  fake.Say(ended);
  spawner::Unkillable stuck;
  spawner::Put("other", stuck.name.job);
  stuck.count = 1;
  stuck.pids[0] = 0x7fffffff;
  fake.Say(stuck);
  spawner::Refused refused;
  refused.header.tag = order.header().tag;
  fake.Say(refused);
  EXPECT_FALSE(agent_.Started().ok());
  EXPECT_EQ(agent_.Quarantine(), "");
}

// As after a minute of SIGKILL; that it is there is what counts.
TEST_F(UnkindSpawnerTest, WhatItCannotKillIsQuarantined) {
  spawner::Packet order;
  Fake fake = Serving(&order);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const os::UniqueFd lasts(ends[0]);
  os::UniqueFd held(ends[1]);
  const pid_t pid = fork();
  if (pid == 0) {
    char byte;
    (void)!read(ends[0], &byte, 1);  // until it is killed: the other end is its own, too
    _exit(0);
  }
  const auto child = os::OpenPidfd(pid);
  ASSERT_TRUE(child.ok());
  spawner::Unkillable stuck;
  spawner::Put("j", stuck.name.job);
  stuck.name.uid = 1001;
  stuck.count = 1;
  stuck.pids[0] = static_cast<uint32_t>(pid);
  fake.Say(stuck);
  std::string why;
  for (int i = 0; i < 2000 && (why = agent_.Quarantine()).empty(); ++i) poll(nullptr, 0, 10);
  EXPECT_THAT(why, HasSubstr(absl::StrCat("pid ", pid, " of job j")));
  EXPECT_TRUE(os::SendSignal(child->get(), SIGKILL).ok());
  EXPECT_TRUE(os::WaitAndReap(child->get()).ok());
  for (int i = 0; i < 2000 && !(why = agent_.Quarantine()).empty(); ++i) poll(nullptr, 0, 10);
  EXPECT_EQ(why, "");
}

TEST_F(UnkindSpawnerTest, NobodyButRootIsBelieved) {
  os::UniqueFd listening;
  const std::string path = path_ + ".other";
  {
    listening = spawner::ListenAt(path, SOCK_SEQPACKET);
    const spawner::As other(12345);
    ASSERT_EQ(listen(listening.get(), 8),
              0);  // the kernel reports the process that called listen() as the peer
  }
  auto made = SpawnerConnection::Open(agent_.loop_, path, nullptr, nullptr);
  EXPECT_TRUE(absl::IsPermissionDenied(made.status())) << made.status();
  unlink(path.c_str());
}

}  // namespace
}  // namespace dtrain::spawn
