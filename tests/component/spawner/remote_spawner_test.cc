// SPDX-License-Identifier: Apache-2.0
// The agent's side with the real dtrain-spawner as root, users and cgroups.
#include "tests/component/spawner/remote_fixture.h"

namespace dtrain::spawn {
namespace {

using ::testing::HasSubstr;

class RemoteSpawnerTest : public spawner::SpawnerFixture {
 protected:
  void SetUp() override {
    spawner::SpawnerFixture::SetUp();
    if (IsSkipped()) return;
    StartServing();
    agent_ = std::make_unique<RemoteAgent>();
    agent_->Connect(base_ + "/run/agent.sock");
    ASSERT_TRUE(agent_->WhenReady().ok()) << Log();
  }
  void TearDown() override {
    agent_.reset();
    spawner::SpawnerFixture::TearDown();
  }
  // For an agent of this process's user.
  void StartServing() { Start({"--agent-user", "root", "--patience", "1"}); }

  Order Of(const std::string& user, const std::string& job) {
    return {{users_.at(user), user}, job, 0, 60'000, 1'000};
  }
  // Of a launcher that is connected as `user`.
  Order By(const std::string& user, const std::string& job) {
    auto [accepted, client] = UserConnection(users_.at(user));
    accepted_ = std::make_shared<Accepted>(Accepted{std::move(accepted)});
    client_ = std::move(client);
    Order order = Of(user, job);
    order.connected = accepted_;
    return order;
  }
  std::string CgroupOf(const std::string& user, const std::string& job) const {
    return absl::StrCat(cgroup_->path(), "/jobs/u", users_.at(user), "/", job, ".0");
  }
  v1::JobRecord Saved() {
    v1::JobRecord record;
    agent_->OnLoop([&] { agent_->processes_->Save(record); });
    return record;
  }
  // Another agent in the place of the one that there was, which is killed.
  void Replace(const SpawnerLimits& limits = {}) {
    agent_ = std::make_unique<RemoteAgent>();
    agent_->Connect(base_ + "/run/agent.sock", limits);
    ASSERT_TRUE(agent_->WhenReady().ok()) << Log();
  }
  std::string Adopt(std::optional<v1::JobRecord> record, const std::string& job) {
    std::string why_not;
    const auto uid = record ? std::optional<uid_t>(record->uid()) : std::nullopt;
    agent_->OnLoop([&] {
      Spawner::Found found = agent_->spawner_->Adopt(
          {job, 0, uid, std::move(record), absl::NotFoundError("nobody listens there")});
      why_not = found.why_not;
      agent_->processes_ = std::move(found.processes);
    });
    return why_not;
  }

  std::unique_ptr<RemoteAgent> agent_;
  std::shared_ptr<Accepted> accepted_;
  os::UniqueFd client_;
};

TEST_F(RemoteSpawnerTest, AJobOfWhoIsConnectedIsStartedAndEnded) {
  ASSERT_TRUE(agent_->Start(By("alice", "j")).ok()) << Log();
  spawner::Shepherd shepherd(agent_->TakeSocket());
  EXPECT_EQ(shepherd["uid"].substr(0, 6), absl::StrCat(users_.at("alice")).substr(0, 6));
  EXPECT_EQ(shepherd["lease_ms"], "60000");
  const v1::JobRecord record = Saved();
  EXPECT_EQ(record.uid(), users_.at("alice"));
  EXPECT_EQ(record.cgroup(), CgroupOf("alice", "j"));
  EXPECT_GT(record.shepherd_pid(), 0u);
  EXPECT_GT(record.shepherd_start_time(), 0u);
  EXPECT_EQ(shepherd.Do("daemons 3"), "yyy\n");
  agent_->OnLoop([&] {
    EXPECT_EQ(agent_->processes_->Living().size(), 3u);
    EXPECT_TRUE(agent_->processes_->is_prepared());
    EXPECT_FALSE(agent_->processes_->shepherd_ended());
  });
  EXPECT_TRUE(agent_->EndAll());
  EXPECT_NE(access(CgroupOf("alice", "j").c_str(), F_OK), 0);
  EXPECT_EQ(agent_->HowEnded(), "killed by signal 9");
  agent_->OnLoop([&] { EXPECT_EQ(agent_->processes_->killed().size(), 4u); });
  EXPECT_EQ(agent_->Quarantine(), "");
}

TEST_F(RemoteSpawnerTest, AnAccountIsEnoughWhereItIsTrusted) {
  ASSERT_TRUE(agent_->Start(Of("alice", "j")).ok()) << Log();
  spawner::Shepherd shepherd(agent_->TakeSocket());
  std::promise<std::string> how;
  agent_->OnLoop([&] {
    agent_->processes_->WhenShepherdEnded([&](std::string text) { how.set_value(text); });
  });
  (void)shepherd.Do("exit 7");
  auto ended = how.get_future();
  ASSERT_EQ(ended.wait_for(kRemoteLimit), std::future_status::ready);
  EXPECT_EQ(ended.get(), "exited with code 7");
}

// What the shepherd left in its cgroup ends with it.
TEST_F(RemoteSpawnerTest, AShepherdsEndEndsItsJob) {
  ASSERT_TRUE(agent_->Start(Of("alice", "j")).ok()) << Log();
  spawner::Shepherd shepherd(agent_->TakeSocket());
  EXPECT_EQ(shepherd.Do("daemons 3"), "yyy\n");
  (void)shepherd.Do("exit 7");
  EXPECT_EQ(agent_->HowEnded(), "exited with code 7");
  EXPECT_TRUE(Vanishes(CgroupOf("alice", "j")));
}

TEST_F(RemoteSpawnerTest, AConnectionOfAliceStartsNobodyElse) {
  Order order = By("alice", "j");
  order.owner = {users_.at("mallory"), "mallory"};
  const absl::Status status = agent_->Start(order);
  EXPECT_THAT(std::string(status.message()), HasSubstr("and not for mallory"));
  EXPECT_TRUE(Vanishes(CgroupOf("alice", "j")));
  EXPECT_NE(access(CgroupOf("mallory", "j").c_str(), F_OK), 0);
}

TEST_F(RemoteSpawnerTest, AConnectionStartsOneJobAndOnlyWhileItIsThere) {
  const Order order = By("alice", "j");
  ASSERT_TRUE(agent_->Start(order).ok());
  Order again = order;
  again.job_id = "k";
  EXPECT_THAT(std::string(agent_->Start(again).message()), HasSubstr("has started a job before"));
  const Order gone = By("alice", "l");
  accepted_.reset();
  EXPECT_TRUE(absl::IsCancelled(agent_->Start(gone)));
  const Order left = By("alice", "m");
  client_.Reset();
  EXPECT_THAT(std::string(agent_->Start(left).message()), HasSubstr("has gone"));
}

// Whatever a user does to his own connection, the spawner must not count it as the agent's breach.
TEST_F(RemoteSpawnerTest, UsersCannotMakeTheAgentBreakTheRules) {
  const os::UniqueFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  ASSERT_EQ(bind(client.get(), reinterpret_cast<sockaddr*>(&name), sizeof(sa_family_t)), 0)
      << "a name of the kernel's";
  ASSERT_TRUE(spawner::ConnectTo(client.get(), base_ + "/users.sock"));
  accepted_ = std::make_shared<Accepted>(
      Accepted{os::UniqueFd(accept4(users_socket_.get(), nullptr, nullptr, SOCK_CLOEXEC))});
  Order order = Of("alice", "j");
  order.connected = accepted_;
  for (int i = 0; i < 2 * spawner::kMostBreaches; ++i) {
    EXPECT_THAT(std::string(agent_->Start(order).message()), HasSubstr("connect without bind"));
  }
  order = By("alice", "k");
  ASSERT_TRUE(agent_->Start(order).ok()) << Log();
  order.job_id = "l";
  for (int i = 0; i < 2 * spawner::kMostBreaches; ++i) {
    EXPECT_THAT(std::string(agent_->Start(order).message()), HasSubstr("connect again"));
  }
  EXPECT_EQ(Log().find("audit"), std::string::npos) << Log();
}

TEST_F(RemoteSpawnerTest, RefusalsSayWhoRefuses) {
  EXPECT_TRUE(absl::IsUnauthenticated(agent_->Start(Of("locked", "j"))));
  EXPECT_TRUE(absl::IsUnauthenticated(agent_->Start(By("locked", "j"))));
  Order odd = Of("alice", "j");
  odd.owner.name = "a b";
  EXPECT_TRUE(absl::IsInvalidArgument(agent_->Start(odd)));
  ASSERT_TRUE(agent_->Start(Of("alice", "j")).ok());
  std::unique_ptr<Processes> first;
  agent_->OnLoop([&] { first = std::move(agent_->processes_); });
  EXPECT_TRUE(absl::IsResourceExhausted(agent_->Start(Of("alice", "j"))));
  agent_->OnLoop([&] { first.reset(); });
}

TEST_F(RemoteSpawnerTest, OneThatIsLetGoHasItsPatience) {
  ASSERT_TRUE(agent_->Start(Of("alice", "j")).ok());
  auto presence = std::make_shared<const bool>(true);
  const std::weak_ptr<const bool> held = presence;
  agent_->OnLoop([&] {
    agent_->processes_->set_patience(std::chrono::milliseconds(1));
    agent_->processes_->set_presence(std::move(presence));
    agent_->processes_.reset();
  });
  EXPECT_TRUE(Vanishes(CgroupOf("alice", "j")));
  for (int i = 0; i < 2000 && !held.expired(); ++i) poll(nullptr, 0, 10);
  EXPECT_TRUE(held.expired());
}

// Who orders and leaves at once.
TEST_F(RemoteSpawnerTest, OneThatNobodyWaitsForIsKilledOnceItRuns) {
  agent_->OnLoop([&] {
    auto made = agent_->spawner_->Spawn(Of("alice", "j"));
    ASSERT_TRUE(made.ok());
  });
  ASSERT_TRUE(agent_->Start(Of("alice", "k")).ok()) << "later than the first";
  EXPECT_TRUE(Vanishes(CgroupOf("alice", "j")));
}

TEST_F(RemoteSpawnerTest, TheNextAgentTakesOver) {
  ASSERT_TRUE(agent_->Start(Of("alice", "j")).ok());
  v1::JobRecord record = Saved();
  Replace();
  EXPECT_EQ(Adopt(record, "j"), "");
  spawner::Shepherd shepherd(agent_->TakeSocket());
  EXPECT_EQ(shepherd["job"], "j");
  EXPECT_TRUE(agent_->EndAll());
  EXPECT_EQ(agent_->HowEnded(), "killed by signal 9");
}

TEST_F(RemoteSpawnerTest, WhatCannotBeTakenOverIsEnded) {
  ASSERT_TRUE(agent_->Start(Of("alice", "j")).ok());
  v1::JobRecord record = Saved();
  Replace();
  EXPECT_THAT(Adopt(std::nullopt, "j"), HasSubstr("missing or damaged"));
  EXPECT_TRUE(agent_->EndAll());
  EXPECT_NE(access(CgroupOf("alice", "j").c_str(), F_OK), 0);
  EXPECT_THAT(Adopt(record, "j"), HasSubstr("has no such job"));
  EXPECT_TRUE(agent_->EndAll());
  record.set_uid(users_.at("mallory"));
  ASSERT_TRUE(agent_->Start(Of("alice", "k")).ok());
  Replace();
  EXPECT_THAT(Adopt(record, "k"), HasSubstr("has no such job")) << "it is alice's";
}

// A record was lost, or its agent died before it wrote one.
TEST_F(RemoteSpawnerTest, OneThatNobodyTakesOverIsKilledAfterItsTime) {
  Order order = Of("alice", "j");
  order.lease_ms = order.grace_ms = 1;
  agent_.reset();
  KillSpawner();
  Start({"--agent-user", "root", "--patience", "60"});
  Replace();
  ASSERT_TRUE(agent_->Start(order).ok());
  const TimePoint begun = Clock::now();
  SpawnerLimits limits;
  limits.unknown = std::chrono::milliseconds(500);
  Replace(limits);
  EXPECT_TRUE(Vanishes(CgroupOf("alice", "j")));
  EXPECT_GE(Clock::now() - begun, limits.unknown);
}

TEST_F(RemoteSpawnerTest, JobsAndOrdersOutliveASpawner) {
  ASSERT_TRUE(agent_->Start(Of("alice", "j")).ok());
  std::unique_ptr<Processes> first;
  agent_->OnLoop([&] { first = std::move(agent_->processes_); });
  KillSpawner();
  const os::UniqueFd lost(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_FALSE(spawner::ConnectTo(lost.get(), base_ + "/run/agent.sock"));
  std::promise<void> ended;
  agent_->OnLoop([&] {
    EXPECT_FALSE(first->shepherd_ended());
    first->EndAll([&] { ended.set_value(); });
  });
  agent_->Submit(Of("alice", "k"));
  StartServing();
  EXPECT_TRUE(agent_->Started().ok()) << Log();
  EXPECT_EQ(ended.get_future().wait_for(kRemoteLimit), std::future_status::ready)
      << "the kill is said again";
  EXPECT_NE(access(CgroupOf("alice", "j").c_str(), F_OK), 0);
  agent_->OnLoop([&] { first.reset(); });
}

TEST_F(RemoteSpawnerTest, WithoutASpawnerAnOrderFailsInTime) {
  SpawnerLimits limits;
  limits.away = std::chrono::milliseconds(300);
  Replace(limits);
  KillSpawner();
  agent_->OnLoop([] {});
  agent_->Submit(Of("alice", "k"));
  const absl::Status status = agent_->Started();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("dtrain-spawner"));
}

}  // namespace
}  // namespace dtrain::spawn
