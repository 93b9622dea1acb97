// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/dtrain.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/component/runtime/ranks.h"

// There when the test is built with AddressSanitizer: 0 when nothing has leaked so far.
extern "C" int __lsan_do_recoverable_leak_check() __attribute__((weak));

namespace dtrain::runtime {
namespace {

using testing::HasSubstr;

size_t Entries(const char* folder) {
  size_t n = 0;
  DIR* dir = opendir(folder);
  while (dir != nullptr && readdir(dir) != nullptr) ++n;
  if (dir != nullptr) closedir(dir);
  return n;
}

// Everything that a cycle of joining and leaving could leave behind.
struct Holdings {
  size_t descriptors = Entries("/proc/self/fd");
  size_t threads = Entries("/proc/self/task");
  size_t mappings = [] {
    std::ifstream maps("/proc/self/maps");
    size_t n = 0;
    for (std::string line; std::getline(maps, line);) n += line.find("rw-s") != line.npos ? 1 : 0;
    return n;
  }();
};

void UseEverything(int cycle) {
  ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << "cycle " << cycle << ": " << dtrain_last_error();
  const int64_t ranks = dtrain_size();
  std::vector<int64_t> data(100, 1);
  ASSERT_EQ(dtrain_allreduce(data.data(), data.data(), 100, DTRAIN_INT64, DTRAIN_SUM), DTRAIN_OK);
  EXPECT_EQ(data[99], ranks);
  dtrain_group group = nullptr;
  ASSERT_EQ(dtrain_group_create(cycle % 2 == 0 ? 0 : dtrain_rank(), 0, &group), DTRAIN_OK);
  dtrain_options options = DTRAIN_OPTIONS_INIT;
  options.group = group;
  std::vector<dtrain_handle> handles(10);
  for (size_t i = 0; i < handles.size(); ++i) {
    int64_t* at = data.data() + 10 * i;
    ASSERT_EQ(dtrain_allreduce_async(at, at, 10, DTRAIN_INT64, DTRAIN_SUM, &options, &handles[i]),
              DTRAIN_OK);
  }
  for (const dtrain_handle handle : handles) ASSERT_EQ(dtrain_wait(handle), DTRAIN_OK);
  EXPECT_EQ(data[42], cycle % 2 == 0 ? ranks * ranks : ranks);
  void* memory = nullptr;
  ASSERT_EQ(dtrain_alloc(1 << 20, &memory), DTRAIN_OK) << dtrain_last_error();
  static_cast<char*>(memory)[12345] = 1;
  EXPECT_THAT(NamedSharedMemory(), testing::IsEmpty());
  if (cycle % 3 == 0) {
    EXPECT_EQ(dtrain_free(memory), DTRAIN_OK);
  }
  ASSERT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
}

void UseGroups() {
  dtrain_group group = nullptr;
  ASSERT_EQ(dtrain_group_create(dtrain_rank() % 2, 0, &group), DTRAIN_OK) << dtrain_last_error();
  int64_t one = 1;
  dtrain_options options = DTRAIN_OPTIONS_INIT;
  options.group = group;
  dtrain_handle handle = 0;
  ASSERT_EQ(dtrain_allreduce_async(&one, &one, 1, DTRAIN_INT64, DTRAIN_SUM, &options, &handle),
            DTRAIN_OK);
  ASSERT_EQ(dtrain_wait(handle), DTRAIN_OK) << dtrain_last_error();
  EXPECT_EQ(one, 2);
}

class RejoinTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RejoinTest, testing::Values(1, 2, 3, 4));

TEST_P(RejoinTest, TenCyclesLeaveNothingBehind) {
  RanksOptions options;
  options.rejoin = true;
  if (GetParam() == 4) options.mapping = "(vector,(0,2,1))";  // with a network in between
  options.environment["DTRAIN_ADDRESS"] = "127.0.0.1";
  const auto ends = Ranks::Run(
      GetParam(),
      [](int) {
        UseEverything(0);
        const Holdings before;
        for (int cycle = 1; cycle < 10; ++cycle) {
          UseEverything(cycle);
          if (testing::Test::HasFatalFailure()) return;
        }
        // The kernel still lists a thread that was joined, for a moment.
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        while (Holdings().threads > before.threads && std::chrono::steady_clock::now() < deadline) {
          std::this_thread::yield();
        }
        const Holdings after;
        EXPECT_EQ(after.descriptors, before.descriptors);
        EXPECT_EQ(after.threads, before.threads);
        EXPECT_EQ(after.mappings, before.mappings);
        if (__lsan_do_recoverable_leak_check != nullptr) {
          EXPECT_EQ(__lsan_do_recoverable_leak_check(), 0) << "memory has leaked, see above";
        }
      },
      options);
  EXPECT_EQ(ends, std::vector<int>(static_cast<size_t>(GetParam()), 0));
}

TEST(RejoinOnceTest, RanksOfDifferentSpeedMeetAgain) {
  RanksOptions options;
  options.rejoin = true;
  const auto ends = Ranks::Run(
      3,
      [](int rank) {
        for (int cycle = 0; cycle < 3; ++cycle) {
          if (rank == cycle) std::this_thread::sleep_for(std::chrono::milliseconds(50));
          UseEverything(cycle);
        }
      },
      options);
  EXPECT_EQ(ends, (std::vector<int>{0, 0, 0}));
}

TEST(RejoinOnceTest, IsRefusedWhereTheLauncherDoesNotLetIt) {
  const auto ends = Ranks::Run(2, [](int) {
    UseEverything(0);
    EXPECT_EQ(dtrain_init(nullptr), DTRAIN_ERROR_STATE);
    EXPECT_THAT(dtrain_last_error(), HasSubstr("'dtrain launch' lets it join again"));
    EXPECT_EQ(dtrain_rank(), -1);
  });
  EXPECT_EQ(ends, (std::vector<int>{0, 0}));
}

// `after`: a collective that the others are in when rank 1 has enough, or one that they begin then.
void OneRankHasEnough(int nodes, void (*other)(int)) {
  RanksOptions options;
  options.rejoin = true;
  if (nodes == 2) options.mapping = "(vector,(0,2,2))";
  options.environment["DTRAIN_ADDRESS"] = "127.0.0.1";
  const auto ends = Ranks::Run(
      4,
      [other](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
        for (int round = 0; round < 3; ++round) {
          int64_t one = 1;
          ASSERT_EQ(dtrain_allreduce(&one, &one, 1, DTRAIN_INT64, DTRAIN_SUM), DTRAIN_OK);
          if (rank != round) other(rank);
          ASSERT_EQ(dtrain_rejoin(nullptr), DTRAIN_OK) << dtrain_last_error();
          EXPECT_EQ(dtrain_rank(), rank);
        }
        UseGroups();
        ASSERT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
      },
      options);
  EXPECT_EQ(ends, std::vector<int>(4, 0));
}

void BlockingSum(int) {
  int64_t one = 1;
  EXPECT_EQ(dtrain_allreduce(&one, &one, 1, DTRAIN_INT64, DTRAIN_SUM), DTRAIN_ERROR_MISMATCH);
  EXPECT_THAT(dtrain_last_error(), HasSubstr("leaving the job"));
}

void NamedSum(int) {
  int64_t one = 1;
  dtrain_options options = DTRAIN_OPTIONS_INIT;
  options.name = "a gradient";
  dtrain_handle handle = 0;
  const dtrain_status begun =
      dtrain_allreduce_async(&one, &one, 1, DTRAIN_INT64, DTRAIN_SUM, &options, &handle);
  EXPECT_EQ(begun == DTRAIN_OK ? dtrain_wait(handle) : begun, DTRAIN_ERROR_MISMATCH);
}

TEST(RejoinTogetherTest, WhoIsInABlockingCallIsTold) {
  OneRankHasEnough(1, BlockingSum);
  OneRankHasEnough(2, BlockingSum);
}

TEST(RejoinTogetherTest, WhoWaitsForAHandleIsTold) {
  OneRankHasEnough(1, NamedSum);
  OneRankHasEnough(2, NamedSum);
}

TEST(RejoinTogetherTest, AllAtOnceNeedNoFailure) {
  OneRankHasEnough(2, [](int) {});
}

TEST(RejoinTogetherTest, ARankThatDoesNotComeIsWaitedForAsLongAsInInit) {
  RanksOptions options;
  options.rejoin = true;
  options.environment["DTRAIN_TIMEOUT_SECONDS"] = "1";
  const auto ends = Ranks::Run(
      2,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        if (rank == 1) {
          BlockingSum(rank);
          _exit(0);
        }
        EXPECT_NE(dtrain_rejoin(nullptr), DTRAIN_OK);
        EXPECT_EQ(dtrain_rank(), -1);
        EXPECT_EQ(dtrain_init(nullptr), DTRAIN_ERROR_STATE);
      },
      options);
  EXPECT_EQ(ends[0], 0);
}

TEST(RejoinOnceTest, IsRefusedInAFork) {
  const auto ends = Ranks::Run(1, [](int) {
    UseEverything(0);
    const pid_t child = fork();
    if (child == 0) _exit(dtrain_init(nullptr) == DTRAIN_ERROR_STATE ? 0 : 1);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  });
  EXPECT_EQ(ends, std::vector<int>{0});
}

}  // namespace
}  // namespace dtrain::runtime
