// SPDX-License-Identifier: Apache-2.0
// What is on record of launches whose shepherd does not start, and how many jobs a user may have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/session/agent_service.h"
#include "agent/session/job_directory.h"
#include "common/base/clock.h"
#include "common/log/log.h"
#include "common/os/fd.h"
#include "dtrain/v1/shepherd.pb.h"
#include "tests/component/session/no_processes.h"
#include "tests/component/session/test_launcher.h"

namespace dtrain::session {
namespace {

using ::testing::HasSubstr;

class FailingSpawner final : public spawn::Spawner {
 public:
  explicit FailingSpawner(absl::Status why) : why_(std::move(why)) {}
  absl::StatusOr<std::unique_ptr<spawn::Processes>> Spawn(spawn::Order) override { return why_; }
  Found Adopt(Trace) override { return {nullptr, {}, "nothing runs"}; }
  void Sweep() override {}

 private:
  const absl::Status why_;
};

// What the agent says as it ends a launch of this user's; empty: it does not.
std::string EndOfLaunch(loop::Loop& loop, Sessions& sessions, const std::string& user, uid_t uid) {
  auth::Identity peer;
  peer.role = auth::Role::kUser;
  peer.name = user;
  peer.account = auth::Account{user, uid, uid};
  AgentService service(loop, sessions, peer);
  auto pair = os::SocketPair();
  EXPECT_TRUE(pair.ok());
  const rpc::StreamServer server(service, std::move(pair->first));
  v1::Hello hello;
  hello.set_protocol(rpc::kProtocolVersion);
  hello.set_job_id("dtrain-1f");
  hello.set_lease_ms(10'000);
  TestLauncher launcher(loop, hello);
  launcher.Greet(std::move(pair->second), /*resume=*/false);
  EXPECT_TRUE(launcher.Until([&] { return launcher.end_.has_value(); }));
  return launcher.end_ ? std::string(launcher.end_->message()) : "";
}

// The log of a resident agent that gets one launch of alice's.
std::string LogOf(const absl::Status& why) {
  loop::Loop loop;
  FailingSpawner spawner(why);
  Identity self;
  self.protocol = rpc::kProtocolVersion;
  self.resumable = true;
  Sessions sessions(loop, self, "/nonexistent", spawner, Readers(), [] {});
  log::Init("test", log::Level::kInfo);
  testing::internal::CaptureStderr();
  const std::string how = EndOfLaunch(loop, sessions, "alice", 1001);
  std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(how, HasSubstr("start the shepherd: ")) << log;
  return log;
}

TEST(AuditTest, AnAllowedLaunchIsOnRecordThoughItsShepherdDoesNotStart) {
  const std::string log = LogOf(absl::UnavailableError("no process can be made"));
  EXPECT_THAT(log, HasSubstr("audit: allowed who=\"user:alice\" account=\"alice\" uid=\"1001\""));
  EXPECT_THAT(log, HasSubstr("job=\"dtrain-1f\" owner=\"alice\""));
}

TEST(AuditTest, OneThatTheNodesPolicyRefusesWasDenied) {
  EXPECT_THAT(LogOf(absl::UnauthenticatedError("dtrain-spawner refuses: no such user")),
              HasSubstr("audit: denied who=\"user:alice\""));
}

// Of each job in a folder it finds a shepherd, which gives its account; it starts none.
class FindingSpawner final : public spawn::Spawner {
 public:
  absl::StatusOr<std::unique_ptr<spawn::Processes>> Spawn(spawn::Order) override {
    return absl::UnavailableError("no process can be made");
  }
  Found Adopt(Trace trace) override {
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok()) << pair.status();
    v1::ShepherdEvent event;
    v1::Hello& hello = *event.mutable_account()->mutable_kept()->mutable_hello();
    hello.set_job_id(trace.job_id);
    hello.set_attempt(trace.attempt);
    hello.set_lease_ms(600'000);
    v1::JobOnNode& job = *event.mutable_account()->mutable_report()->mutable_job();
    job.set_state(v1::JobOnNode::STATE_RUNNING);
    job.add_ranks();
    const std::string text = event.SerializeAsString();
    const std::string frame = std::string{static_cast<char>(text.size()), 0, 0, 0} + text;
    EXPECT_LT(text.size(), 128u);
    EXPECT_EQ(send(pair->second.get(), frame.data(), frame.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(frame.size()));
    ends_.push_back(std::move(pair->second));
    return {std::make_unique<NoProcesses>(std::move(pair->first)),
            {trace.uid.value_or(0), "alice"},
            ""};
  }
  void Sweep() override {}

 private:
  std::vector<os::UniqueFd> ends_;  // the shepherds'
};

// How an agent that has so many jobs of alice's ends a launch of `user`.
std::string EndBeside(int jobs, const std::string& user, uint32_t uid) {
  char name[] = "/tmp/dtrain-audit-XXXXXX";
  const std::string state = mkdtemp(name);
  std::filesystem::create_directory(state + "/jobs");
  for (int i = 0; i < jobs; ++i) {
    EXPECT_TRUE(JobDirectory::Make(state, {1001, absl::StrCat("dtrain-", i), 0}, false).ok());
  }
  std::string how;
  {
    loop::Loop loop;
    FindingSpawner spawner;
    Identity self;
    self.protocol = rpc::kProtocolVersion;
    self.resumable = true;
    Sessions sessions(loop, self, state, spawner, Readers(), [] {});
    log::Init("test", log::Level::kError);
    std::optional<absl::Status> adopted;
    sessions.AdoptAll([&](absl::Status all) { adopted = std::move(all); });
    const TimePoint late = Clock::now() + std::chrono::seconds(60);
    while (!adopted && loop.context().run_one_until(late) != 0) continue;
    EXPECT_EQ(adopted, absl::OkStatus());
    how = EndOfLaunch(loop, sessions, user, uid);
  }
  std::filesystem::remove_all(state);
  return how;
}

TEST(JobsOfOneUserTest, MoreThan1024AreRefusedAndOthersAreNot) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit enough = before;  // two ends of a socket for each job
  enough.rlim_cur = std::min<rlim_t>(before.rlim_max, std::max<rlim_t>(before.rlim_cur, 4096));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &enough), 0);
  EXPECT_THAT(EndBeside(1023, "alice", 1001), HasSubstr("start the shepherd: "));
  EXPECT_EQ(EndBeside(1024, "alice", 1001),
            "alice has 1024 jobs here, as many as one user may have");
  EXPECT_THAT(EndBeside(1024, "bob", 1002), HasSubstr("start the shepherd: "));
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace dtrain::session
