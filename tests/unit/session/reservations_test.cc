// SPDX-License-Identifier: Apache-2.0
#include "agent/session/reservations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace dtrain::session {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kMiB = 1 << 20;

v1::Inventory TwoGpus(uint64_t used_mib = 0) {
  v1::Inventory inventory;
  inventory.set_allowed_cpus("0-3");
  for (int i = 0; i < 2; ++i) {
    v1::Gpu& gpu = *inventory.add_gpus();
    gpu.set_index(i);
    gpu.set_uuid("GPU-" + std::to_string(i));
    gpu.set_memory_used_bytes(i == 0 ? used_mib * kMiB : 0);
  }
  return inventory;
}

class ReservationsTest : public testing::Test {
 public:
  absl::Status Reserve(const int& session, std::set<std::string> gpus, std::set<int> cores = {}) {
    return books_.Reserve(&session, session == 1 ? "job a of alice" : "job b of bob",
                          {std::move(gpus), std::move(cores)});
  }
  v1::Inventory Marked(const int& session, uint64_t used_mib = 0) {
    v1::Inventory inventory = TwoGpus(used_mib);
    books_.Mark(&session, inventory);
    return inventory;
  }

  const int a_ = 1, b_ = 2;
  Reservations books_;
};

TEST_F(ReservationsTest, WhatOneHasTheOtherDoesNotGet) {
  EXPECT_TRUE(Reserve(a_, {"GPU-0"}, {0, 1}).ok());
  EXPECT_TRUE(Reserve(b_, {"GPU-1"}, {2}).ok());
  EXPECT_THAT(Reserve(b_, {"GPU-0", "GPU-1"}, {2}).message(),
              AllOf(HasSubstr("GPU-0"), HasSubstr("job a of alice")));
  EXPECT_THAT(Reserve(b_, {"GPU-1"}, {1, 2}).message(), HasSubstr("cores 1 by job a of alice"));
  // b still has what it had.
  EXPECT_FALSE(Reserve(a_, {"GPU-1"}).ok());
  EXPECT_FALSE(Reserve(a_, {}, {2}).ok());
}

TEST_F(ReservationsTest, OneUserDoesNotHoldAllPorts) {
  const spawn::Owner mallory{1, "mallory"}, alice{2, "alice"};
  std::vector<int> sessions(20);
  size_t held = 0;
  for (const int& session : sessions) held += books_.ClaimPorts(&session, mallory, 1000).ok();
  EXPECT_EQ(held, 2u);
  EXPECT_THAT(books_.ClaimPorts(&sessions[9], mallory, 1000).message(),
              AllOf(HasSubstr("jobs of mallory hold 2000 ports"), HasSubstr("2048")));
  EXPECT_TRUE(books_.ClaimPorts(&a_, alice, 1000).ok());
  // Once more, in the place of what it has.
  EXPECT_TRUE(books_.ClaimPorts(&sessions[0], mallory, 1000).ok());
  books_.ReleasePorts(&sessions[0]);
  EXPECT_TRUE(books_.ClaimPorts(&sessions[9], mallory, 1000).ok());
  // Nor do many.
  for (uid_t uid = 10; uid < 30; ++uid) {
    held += books_.ClaimPorts(&sessions[uid - 10], {uid, "m"}, 1000).ok();
  }
  EXPECT_THAT(books_.ClaimPorts(&b_, {3, "bob"}, 1000).message(), HasSubstr("all may hold"));
  EXPECT_TRUE(books_.ClaimPorts(&b_, {3, "bob"}, 64).ok()) << "these are anybody's";
}

TEST_F(ReservationsTest, ASessionMayReserveAgainAndGiveBack) {
  EXPECT_TRUE(Reserve(a_, {"GPU-0", "GPU-1"}).ok());
  EXPECT_TRUE(Reserve(a_, {"GPU-0"}).ok());
  EXPECT_TRUE(Reserve(b_, {"GPU-1"}).ok());
  EXPECT_TRUE(Reserve(a_, {}).ok());
  EXPECT_TRUE(Reserve(b_, {"GPU-0", "GPU-1"}).ok());
  books_.Release(&b_);
  EXPECT_TRUE(Reserve(a_, {"GPU-0", "GPU-1"}).ok());
}

TEST_F(ReservationsTest, MarksWhatOthersHave) {
  ASSERT_TRUE(Reserve(a_, {"GPU-0"}, {0, 1, 3}).ok());
  const v1::Inventory theirs = Marked(b_), own = Marked(a_);
  EXPECT_TRUE(theirs.reserves());
  EXPECT_EQ(theirs.gpus(0).withheld(), "held by job a of alice");
  EXPECT_THAT(theirs.gpus(1).withheld(), IsEmpty());
  ASSERT_EQ(theirs.held_cores_size(), 1);
  EXPECT_EQ(theirs.held_cores(0).cpulist(), "0-1,3");
  EXPECT_EQ(theirs.held_cores(0).holder(), "job a of alice");
  EXPECT_THAT(own.gpus(0).withheld(), IsEmpty());
  EXPECT_EQ(own.held_cores_size(), 0);
}

// D14: memory that is still held keeps the GPU out of use until a look finds it free.
TEST_F(ReservationsTest, AGpuThatIsNotFreeIsNotGivenOut) {
  const v1::Inventory before = TwoGpus(), after = TwoGpus(9000);
  GpuRelease release;
  release.Before({before.gpus().begin(), before.gpus().end()});
  release.Given({"GPU-0"});
  release.After({after.gpus().begin(), after.gpus().end()}, {});
  books_.Withhold("job a of alice", release);

  EXPECT_THAT(Reserve(b_, {"GPU-0"}).message(),
              AllOf(HasSubstr("after job a of alice"), HasSubstr("9000 MiB")));
  EXPECT_THAT(Marked(b_, 9000).gpus(0).withheld(), HasSubstr("withheld after job a of alice"));
  EXPECT_TRUE(Reserve(b_, {"GPU-1"}).ok());
  // Without a look nothing is known.
  v1::Inventory blind;
  books_.Mark(&b_, blind);
  EXPECT_FALSE(Reserve(b_, {"GPU-0"}).ok());
  EXPECT_THAT(Marked(b_, 10).gpus(0).withheld(), IsEmpty());
  EXPECT_TRUE(Reserve(b_, {"GPU-0"}).ok());
}

TEST_F(ReservationsTest, ReadsWhatALauncherAsksFor) {
  v1::Reserve reserve;
  reserve.add_gpu_uuids("GPU-0");
  reserve.set_cpulist("0-1,5");
  auto share = ShareOf(reserve);
  ASSERT_TRUE(share.ok());
  EXPECT_EQ(share->gpus, std::set<std::string>{"GPU-0"});
  EXPECT_EQ(share->cores, (std::set<int>{0, 1, 5}));
  reserve.set_cpulist("all");
  EXPECT_FALSE(ShareOf(reserve).ok());
}

TEST_F(ReservationsTest, NobodyHasMoreCoresThanANode) {
  v1::Reserve reserve;
  reserve.set_cpulist(absl::StrCat("0-", kMostCores - 1));
  EXPECT_TRUE(ShareOf(reserve).ok());
  reserve.set_cpulist(absl::StrCat("0-", kMostCores));
  EXPECT_FALSE(ShareOf(reserve).ok());
  // Reading it would take long.
  std::string cpulist = "0";
  for (int i = 0; i < 100'000; ++i) cpulist += ",0";
  reserve.set_cpulist(cpulist);
  EXPECT_FALSE(ShareOf(reserve).ok());
}

// The names need not be those of the node's GPUs: one user may invent many, in many jobs.
TEST_F(ReservationsTest, WhatOthersNameCostsAJobNothing) {
  std::vector<int> sessions(1000);
  for (size_t i = 0; i < sessions.size(); ++i) {
    std::set<std::string> gpus;
    for (int gpu = 0; gpu < kMostGpus; ++gpu) gpus.insert(absl::StrCat("GPU-", i, "-", gpu));
    ASSERT_TRUE(Reserve(sessions[i], std::move(gpus)).ok());
  }
  std::set<std::string> gpus;
  for (int gpu = 0; gpu < kMostGpus; ++gpu) gpus.insert(absl::StrCat("GPU-0-", gpu, "-"));
  const std::clock_t begin = std::clock();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Reserve(a_, gpus).ok());
  EXPECT_LT(std::clock() - begin, 5 * CLOCKS_PER_SEC);
}

TEST_F(ReservationsTest, NobodyHasMoreGpusThanANode) {
  v1::Reserve reserve;
  for (int i = 0; i < kMostGpus; ++i) reserve.add_gpu_uuids(absl::StrCat("GPU-", i));
  EXPECT_TRUE(ShareOf(reserve).ok());
  reserve.add_gpu_uuids("GPU-more");
  EXPECT_FALSE(ShareOf(reserve).ok());
}

}  // namespace
}  // namespace dtrain::session
