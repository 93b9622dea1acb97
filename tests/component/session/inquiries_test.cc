// SPDX-License-Identifier: Apache-2.0
// What questions about the node cost, with readers that answer at once.
#include "agent/session/inquiries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/session/job_directory.h"
#include "common/base/clock.h"
#include "common/os/fd.h"
#include "tests/component/inventory/tree.h"
#include "tests/component/session/no_processes.h"

namespace dtrain::session {
namespace {

class InquiriesTest : public ::testing::Test {
 protected:
  InquiriesTest() {
    readers_.status = [this](absl::AnyInvocable<void(v1::Inventory)> done) {
      ++looks_;
      done(v1::Inventory());
    };
  }
  static auth::Identity PeerOf(const std::string& user, uint32_t uid) {
    auth::Identity peer;
    peer.role = auth::Role::kUser;
    peer.name = user;
    peer.account = auth::Account{user, uid, uid};
    return peer;
  }
  void Ask(const std::string& user, uint32_t uid, int count) {
    const auth::Identity peer = PeerOf(user, uid);
    for (int i = 0; i < count; ++i) {
      inquiries_.ReportNode(peer, "/dtrain.v1.Agent/NodeStatus",
                            [this](const absl::StatusOr<v1::NodeReport>& report) {
                              (report.ok() ? answered_ : refused_)++;
                              if (!report.ok()) why_ = std::string(report.status().message());
                              if (answered_ == 2 + 32) loop_.Stop();
                            });
    }
  }
  // `cost`: what the caller takes to make JSON of the answer, as of many jobs.
  void List(const std::string& user, uint32_t uid, int count, Duration cost) {
    const auth::Identity peer = PeerOf(user, uid);
    for (int i = 0; i < count; ++i) {
      inquiries_.ListJobs(peer, "GET /v1/jobs", [&](const auto& jobs) {
        (jobs.ok() ? answered_ : refused_)++;
        if (!jobs.ok()) why_ = std::string(jobs.status().message());
        if (jobs.ok()) Spend(cost);
      });
    }
  }
  // From now on a report takes as long to make, as one of many jobs does.
  void SetCost(Duration cost) {
    inquiries_.SetAbout([cost] {
      Spend(cost);
      return v1::NodeReport();
    });
  }
  static void Spend(Duration cost) {
    const TimePoint end = Clock::now() + cost;
    while (Clock::now() < end) continue;
  }
  static int64_t ResidentBytes() {
    int64_t all = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> all >> resident;
    return resident * sysconf(_SC_PAGESIZE);
  }

  loop::Loop loop_;
  Readers readers_;
  Reservations reservations_;
  spawn::Quarantine quarantine_;
  Roster roster_{loop_, false};
  Inquiries inquiries_{Surroundings{loop_, readers_, reservations_, {}, ""}, quarantine_, roster_};
  int looks_ = 0, answered_ = 0, refused_ = 0;
  std::string why_;
};

TEST_F(InquiriesTest, OneUsersQuestionsAboutTheNodeShareAnAnswer) {
  SetCost(std::chrono::milliseconds(20));
  Ask("mallory", 7, 1000);
  EXPECT_EQ(looks_, 1);
  EXPECT_EQ(answered_, 1);
  EXPECT_EQ(refused_, 1000 - 1 - 32);
  EXPECT_EQ(why_,
            "32 questions of mallory about this node wait for their answer, as many as one user "
            "may have");
  Ask("alice", 8, 1);
  EXPECT_EQ(answered_, 2) << "others do not wait for them";
  loop::Timer deadline(loop_);
  deadline.After(std::chrono::minutes(1), [&] { loop_.Stop(); });
  loop_.Run();
  EXPECT_EQ(looks_, 3);
  EXPECT_EQ(answered_, 2 + 32);
}

// Of what a resident agent may lock itself its users have nothing.
TEST_F(InquiriesTest, ALittleMemoryToLockIsWarnedOfIfUsersHaveNoMore) {
  const inventory::Tree tree;
  readers_.roots = tree.roots();
  tree.Write("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
  tree.Write("proc/self/limits", "Max locked memory         8388608     8388608     bytes\n");
  tree.Write("proc/self/status", "CapEff:\t0000000000004000\n");  // CAP_IPC_LOCK
  for (const bool resident : {false, true}) {
    Identity self;
    self.resumable = resident;
    Inquiries inquiries(Surroundings{loop_, readers_, reservations_, self, ""}, quarantine_,
                        roster_);
    int warnings = -1;
    inquiries.ReportNode(PeerOf("alice", 8), "/dtrain.v1.Agent/NodeStatus",
                         [&](const absl::StatusOr<v1::NodeReport>& report) {
                           ASSERT_TRUE(report.ok()) << report.status();
                           warnings = report->inventory().warnings_size();
                         });
    EXPECT_EQ(warnings, resident ? 1 : 0);
  }
}

// They do not wait for the driver's look at the GPUs, so they share no answer.
TEST_F(InquiriesTest, OneUsersQuestionsAboutJobsTakeAShareOfTheLoop) {
  List("mallory", 7, 1000, std::chrono::milliseconds(20));
  const int of_mallory = answered_;
  EXPECT_GE(of_mallory, 1);
  EXPECT_LT(of_mallory, 100) << "it is 26 on a machine with time";
  EXPECT_EQ(refused_, 1000 - of_mallory);
  EXPECT_THAT(why_, ::testing::StartsWith("questions of mallory have taken as much of this agent's "
                                          "time as one user's may; ask again in "));
  List("alice", 8, 2, Duration::zero());
  EXPECT_EQ(answered_, of_mallory + 2) << "others do not pay for them";
  Ask("mallory", 7, 1);
  EXPECT_EQ(looks_, 0) << "her questions about the node are of the same share";
  Ask("bob", 9, 1);
  EXPECT_EQ(looks_, 1);
}

TEST(QuestionTimeTest, OnesASecondOfATenthOfItAreAnswered) {
  QuestionTime time;
  TimePoint now = Clock::now();
  for (int i = 0; i < 1000; ++i) {
    EXPECT_LE(time.answered_from(), now) << i;
    time.Take(now, std::chrono::milliseconds(100));
    now += std::chrono::seconds(1);
  }
}

TEST(QuestionTimeTest, AFloodTakesATenth) {
  QuestionTime time;
  const TimePoint begin = Clock::now();
  Duration taken{};
  for (TimePoint now = begin; now < begin + std::chrono::seconds(100);) {
    const Duration cost = std::chrono::milliseconds(now < time.answered_from() ? 0 : 10);
    if (cost > Duration::zero()) time.Take(now, cost);
    taken += cost;
    now += std::max<Duration>(cost, std::chrono::milliseconds(1));
  }
  EXPECT_LE(taken, std::chrono::milliseconds(10'550));
  EXPECT_GE(taken, std::chrono::seconds(10)) << "and as much it may";
}

TEST_F(InquiriesTest, AUserWhoWaitsIsNotForgottenWhenOthersAsk) {
  std::vector<absl::AnyInvocable<void(v1::Inventory)>> looks;
  readers_.status = [&](absl::AnyInvocable<void(v1::Inventory)> done) {
    looks.push_back(std::move(done));
  };
  Ask("alice", 8, 2);
  Ask("bob", 9, 1);
  Ask("alice", 8, 1);
  ASSERT_EQ(looks.size(), 2u) << "alice's questions share a look";
  looks[0](v1::Inventory());
  EXPECT_EQ(answered_, 3);
  looks[1](v1::Inventory());
  EXPECT_EQ(answered_, 4);
}

// One that was forgotten too early would be answered at once.
TEST_F(InquiriesTest, AUserWithAnAnswerWaitsForTheNextThoughOthersAsk) {
  SetCost(std::chrono::milliseconds(100));  // so the next one is due two seconds later
  Ask("mallory", 7, 1);
  SetCost(Duration::zero());
  Ask("alice", 8, 1);
  EXPECT_EQ(answered_, 2);
  Ask("mallory", 7, 1);
  EXPECT_EQ(looks_, 2);
  EXPECT_EQ(answered_, 2);
}

// With a job of alice's, whose uid is 7: one host of an elastic one, and its launcher is away.
class InquiriesAboutAJobTest : public InquiriesTest {
 protected:
  InquiriesAboutAJobTest() {
    char name[] = "/tmp/dtrain-inquiries-XXXXXX";
    state_ = mkdtemp(name);
    std::filesystem::create_directory(state_ + "/jobs");
    auto directory = JobDirectory::Make(state_, {7, "dtrain-2e", 3}, /*with_socket=*/false);
    EXPECT_TRUE(directory.ok()) << directory.status();
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    end_ = std::move(pair->second);
    v1::Account account;
    v1::Hello& hello = *account.mutable_kept()->mutable_hello();
    hello.set_job_id("dtrain-2e");
    hello.set_attempt(3);
    hello.set_lease_ms(60'000);
    hello.mutable_elastic()->set_attempt(1);
    hello.mutable_elastic()->set_first_number(8);
    v1::JobOnNode& job = *account.mutable_report()->mutable_job();
    job.set_state(v1::JobOnNode::STATE_RUNNING);
    job.set_node_rank(1);
    job.set_node_count(2);
    job.set_world_size(4);
    job.add_argv("secret");
    job.add_gpu_uuids("GPU-1");
    job.set_cpulist("0-3");
    job.add_ranks()->set_rank(2);
    *roster_.AddPlace() = std::make_unique<Session>(
        Surroundings{loop_, readers_, reservations_, {}, state_}, Owner{7, "alice"},
        std::make_unique<ShepherdChannel>(loop_,
                                          std::make_unique<NoProcesses>(std::move(pair->first))),
        std::move(account), v1::JobRecord(), *std::move(directory), [] {});
  }
  ~InquiriesAboutAJobTest() override { std::filesystem::remove_all(state_); }

  // As this user is told of it.
  v1::JobOnNode TheJobFor(const std::string& user, uint32_t uid) {
    std::vector<v1::JobOnNode> list;
    inquiries_.ListJobs(PeerOf(user, uid), "GET /v1/jobs", [&](const auto& jobs) {
      EXPECT_TRUE(jobs.ok()) << jobs.status();
      if (jobs.ok()) list = *jobs;
    });
    EXPECT_EQ(list.size(), 1u);
    return list.empty() ? v1::JobOnNode() : list[0];
  }

  std::string state_;
  os::UniqueFd end_;  // the shepherd's
};

TEST_F(InquiriesAboutAJobTest, AnotherUserSeesItOnlyInName) {
  const v1::JobOnNode job = TheJobFor("mallory", 8);
  EXPECT_GT(job.since_unix_nanos(), 0);
  v1::JobOnNode expected;
  expected.set_job_id("dtrain-2e");
  expected.set_attempt(3);
  expected.set_owner("alice");
  expected.set_uid(7);
  expected.set_state(v1::JobOnNode::STATE_AWAY);
  expected.set_since_unix_nanos(job.since_unix_nanos());
  expected.add_gpu_uuids("GPU-1");
  expected.set_cpulist("0-3");
  expected.mutable_elastic()->set_attempt(1);
  expected.set_in_name(true);
  EXPECT_EQ(job.SerializeAsString(), expected.SerializeAsString()) << job.ShortDebugString();
}

TEST_F(InquiriesAboutAJobTest, ItsOwnerSeesAllOfIt) {
  const v1::JobOnNode job = TheJobFor("alice", 7);
  EXPECT_FALSE(job.in_name());
  EXPECT_EQ(job.state(), v1::JobOnNode::STATE_AWAY);
  EXPECT_EQ(job.node_rank(), 1u);
  EXPECT_EQ(job.node_count(), 2u);
  EXPECT_EQ(job.world_size(), 4u);
  EXPECT_THAT(job.argv(), ::testing::ElementsAre("secret"));
  EXPECT_EQ(job.elastic().first_number(), 8u);
  ASSERT_EQ(job.ranks_size(), 1);
  EXPECT_EQ(job.ranks(0).rank(), 10u) << "the job's number for it";
}

#ifndef __SANITIZE_ADDRESS__  // it keeps what is freed
TEST_F(InquiriesTest, UsersWhoWaitForNoAnswerAreForgotten) {
  const int64_t before = ResidentBytes();
  for (uint32_t uid = 0; uid < 2000; ++uid) {
    Ask(absl::StrCat(uid, std::string(64 << 10, 'x')), uid, 1);
  }
  EXPECT_EQ(answered_, 2000);
  EXPECT_LT(ResidentBytes() - before, 64 << 20) << "all their names take 250 MiB at least";
}
#endif

}  // namespace
}  // namespace dtrain::session
