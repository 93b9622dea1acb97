// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/dtrain.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/component/runtime/ranks.h"

namespace dtrain::runtime {
namespace {

using testing::HasSubstr;

// A fork without a launcher, so that each test has a library of its own.
void RunAlone(const std::function<void()>& body) {
  EXPECT_EQ(Ranks::Run(1,
                       [&](int) {
                         for (const char* name : {"PMI_FD", "PMI_RANK", "PMI_SIZE"}) unsetenv(name);
                         body();
                       }),
            std::vector<int>{0});
}

TEST(ApiTest, ProgramWithoutLauncherIsAJobOfOneRank) {
  RunAlone([] {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
    EXPECT_EQ(dtrain_rank(), 0);
    EXPECT_EQ(dtrain_size(), 1);
    EXPECT_EQ(dtrain_local_rank(), 0);
    EXPECT_EQ(dtrain_local_size(), 1);
    EXPECT_EQ(dtrain_node_rank(), 0);
    const float in[] = {1, 2};
    float out[] = {0, 0};
    EXPECT_EQ(dtrain_allreduce(in, out, 2, DTRAIN_FLOAT32, DTRAIN_AVG), DTRAIN_OK);
    EXPECT_EQ(out[1], 2);
    EXPECT_EQ(dtrain_barrier(), DTRAIN_OK);
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  });
}

TEST(ApiTest, WorkerOfAnotherLauncherIsNotTakenForAJobOfOneRank) {
  RunAlone([] {
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    EXPECT_EQ(dtrain_init(nullptr), DTRAIN_ERROR_ENVIRONMENT);
    EXPECT_THAT(dtrain_last_error(), HasSubstr("OMPI_COMM_WORLD_SIZE=4"));
    EXPECT_THAT(dtrain_last_error(), HasSubstr("dtrain launch"));
  });
}

TEST(ApiTest, CallsBeforeInitSayThatInitIsMissing) {
  RunAlone([] {
    EXPECT_STREQ(dtrain_last_error(), "");
    int value = 1;
    EXPECT_EQ(dtrain_rank(), -1);
    EXPECT_EQ(dtrain_size(), -1);
    EXPECT_EQ(dtrain_barrier(), DTRAIN_ERROR_STATE);
    EXPECT_STREQ(dtrain_last_error(), "dtrain_barrier: dtrain_init has not been called");
    EXPECT_EQ(dtrain_allreduce(&value, &value, 1, DTRAIN_INT32, DTRAIN_SUM), DTRAIN_ERROR_STATE);
    EXPECT_EQ(dtrain_broadcast(&value, 1, DTRAIN_INT32, 0), DTRAIN_ERROR_STATE);
    EXPECT_EQ(dtrain_allgather(&value, &value, 1, DTRAIN_INT32), DTRAIN_ERROR_STATE);
    EXPECT_EQ(dtrain_finalize(), DTRAIN_ERROR_STATE);
    EXPECT_EQ(value, 1);
  });
}

TEST(ApiTest, InitTwiceIsRefusedAndAfterFinalizeThereIsNoJob) {
  RunAlone([] {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    EXPECT_EQ(dtrain_init(nullptr), DTRAIN_ERROR_STATE);
    EXPECT_EQ(dtrain_barrier(), DTRAIN_OK) << "the job lives on";
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
    EXPECT_EQ(dtrain_rank(), -1);
    EXPECT_EQ(dtrain_node_count(), -1);
    EXPECT_STREQ(dtrain_backend(), "none");
    EXPECT_EQ(dtrain_finalize(), DTRAIN_ERROR_STATE);
    EXPECT_EQ(dtrain_barrier(), DTRAIN_ERROR_STATE);
    EXPECT_THAT(dtrain_last_error(), HasSubstr("dtrain_finalize has been called"));
  });
}

TEST(ApiTest, JobWithoutALauncherMayBeLeftAndJoinedAgain) {
  RunAlone([] {
    for (int cycle = 0; cycle < 10; ++cycle) {
      ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
      EXPECT_EQ(dtrain_size(), 1);
      EXPECT_EQ(dtrain_barrier(), DTRAIN_OK);
      EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
    }
  });
}

TEST(ApiTest, BadArgumentsAreNamedAndHarmNothing) {
  const auto ends = Ranks::Run(2, [](int rank) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    int32_t data[4] = {1, 2, 3, 4};
    const auto bad = DTRAIN_ERROR_INVALID_ARGUMENT;
    if (rank == 0) {  // a refused call is not a collective: only one rank makes it
      EXPECT_EQ(dtrain_allreduce(nullptr, data, 1, DTRAIN_INT32, DTRAIN_SUM), bad);
      EXPECT_EQ(dtrain_allreduce(data, nullptr, 1, DTRAIN_INT32, DTRAIN_SUM), bad);
      EXPECT_THAT(dtrain_last_error(), HasSubstr("NULL"));
      EXPECT_EQ(dtrain_allreduce(data, data + 1, 3, DTRAIN_INT32, DTRAIN_SUM), bad);
      EXPECT_THAT(dtrain_last_error(), HasSubstr("overlap"));
      EXPECT_EQ(dtrain_allgather(data + 1, data, 2, DTRAIN_INT32), bad);
      EXPECT_EQ(dtrain_broadcast(data, 1, DTRAIN_INT32, 2), bad);
      EXPECT_THAT(dtrain_last_error(), HasSubstr("root 2"));
      EXPECT_EQ(dtrain_broadcast(data, 1, DTRAIN_INT32, -1), bad);
      EXPECT_EQ(dtrain_allreduce(data, data, SIZE_MAX / 4, DTRAIN_INT32, DTRAIN_SUM), bad);
      EXPECT_EQ(dtrain_allreduce(data, data, 1, static_cast<dtrain_type>(7), DTRAIN_SUM), bad);
      EXPECT_EQ(dtrain_allreduce(data, data, 1, DTRAIN_INT32, static_cast<dtrain_op>(5)), bad);
      EXPECT_EQ(dtrain_reduce_scatter(data, data + 1, 1, DTRAIN_INT32, DTRAIN_SUM), bad);
      EXPECT_EQ(dtrain_alltoall(data, data + 1, 1, DTRAIN_INT32), bad);
      EXPECT_EQ(dtrain_reduce(data, nullptr, 1, DTRAIN_INT32, DTRAIN_SUM, 0), bad) << "on the root";
      EXPECT_EQ(dtrain_reduce(data, data, 1, DTRAIN_INT32, DTRAIN_SUM, 2), bad);
      void* memory = data;
      EXPECT_EQ(dtrain_alloc(SIZE_MAX, &memory), bad);
      EXPECT_EQ(memory, nullptr);
      EXPECT_EQ(dtrain_alloc(1, nullptr), bad);
      EXPECT_EQ(dtrain_alloc_device(1, &memory), DTRAIN_ERROR_UNSUPPORTED);
      EXPECT_EQ(dtrain_free(data), bad);
      EXPECT_EQ(dtrain_free(nullptr), DTRAIN_OK);
      EXPECT_EQ(dtrain_allreduce(data, data, 1, DTRAIN_INT64, DTRAIN_AVG),
                DTRAIN_ERROR_UNSUPPORTED);
      EXPECT_THAT(dtrain_last_error(), HasSubstr("avg of int64"));
    }
    EXPECT_EQ(dtrain_allreduce(data, data, 4, DTRAIN_INT32, DTRAIN_SUM), DTRAIN_OK);
    EXPECT_EQ(data[3], 8);
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  });
  EXPECT_EQ(ends, (std::vector<int>{0, 0}));
}

TEST(ApiTest, AllocatedMemoryIsZeroedAlignedAndGoodForCollectives) {
  for (const int ranks : {1, 3}) {
    const auto ends = Ranks::Run(ranks, [&](int) {
      void* memory = nullptr;
      EXPECT_EQ(dtrain_alloc(1, &memory), DTRAIN_ERROR_STATE);
      ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
      std::vector<void*> blocks;
      for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, size_t{3} << 20}) {
        ASSERT_EQ(dtrain_alloc(bytes, &memory), DTRAIN_OK) << dtrain_last_error();
        ASSERT_NE(memory, nullptr);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 4096, 0u);
        const auto* data = static_cast<const char*>(memory);
        EXPECT_TRUE(std::all_of(data, data + bytes, [](char c) { return c == 0; }));
        blocks.push_back(memory);
      }
      auto* data = static_cast<float*>(blocks[3]);
      const size_t count = (size_t{3} << 20) / sizeof(float);
      std::fill(data, data + count, 1.0f);
      ASSERT_EQ(dtrain_allreduce(data, data, count, DTRAIN_FLOAT32, DTRAIN_SUM), DTRAIN_OK);
      EXPECT_EQ(data[count - 1], static_cast<float>(ranks));
      for (void* block : {blocks[3], blocks[0], blocks[2]})
        EXPECT_EQ(dtrain_free(block), DTRAIN_OK);
      EXPECT_EQ(dtrain_free(blocks[3]), DTRAIN_ERROR_INVALID_ARGUMENT) << "twice";
      EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << "which frees the other one";
    });
    EXPECT_EQ(ends, std::vector<int>(static_cast<size_t>(ranks), 0));
  }
}

TEST(ApiTest, ConfigOfAnotherVersionIsReadAsFarAsItIsKnown) {
  struct Newer {
    dtrain_config known = DTRAIN_CONFIG_INIT;
    long added = 0;
  };
  RunAlone([] {
    Newer config;
    config.known.struct_size = sizeof(config);
    config.added = 1;
    EXPECT_EQ(dtrain_init(&config.known), DTRAIN_ERROR_INVALID_ARGUMENT);
    config.known.struct_size = 0;
    EXPECT_EQ(dtrain_init(&config.known), DTRAIN_ERROR_INVALID_ARGUMENT);
    config.known.struct_size = sizeof(config);
    config.added = 0;
    config.known.flags = 1;
    EXPECT_EQ(dtrain_init(&config.known), DTRAIN_ERROR_UNSUPPORTED);
    config.known.flags = 0;
    EXPECT_EQ(dtrain_init(&config.known), DTRAIN_OK) << dtrain_last_error();
  });
  RunAlone([] {
    dtrain_config older = DTRAIN_CONFIG_INIT;
    older.struct_size = offsetof(dtrain_config, init_timeout_ms);
    older.init_timeout_ms = -5;  // beyond what the caller says it has
    EXPECT_EQ(dtrain_init(&older), DTRAIN_OK) << dtrain_last_error();
  });
}

TEST(ApiTest, ErrorTextBelongsToItsThread) {
  RunAlone([] {
    EXPECT_EQ(dtrain_barrier(), DTRAIN_ERROR_STATE);
    std::thread([] { EXPECT_STREQ(dtrain_last_error(), ""); }).join();
    EXPECT_STRNE(dtrain_last_error(), "");
  });
}

// Two blocking calls of two threads, on both ranks: the second waits for its turn.
TEST(ApiTest, SecondThreadWaitsItsTurn) {
  const auto ends = Ranks::Run(2, [](int rank) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    constexpr int kCalls = 200;
    std::atomic<int> inside{0};
    const auto calls = [&] {
      for (int i = 0; i < kCalls; ++i) {
        int64_t value = 1;
        EXPECT_EQ(dtrain_allreduce(&value, &value, 1, DTRAIN_INT64, DTRAIN_SUM), DTRAIN_OK)
            << dtrain_last_error();
        EXPECT_EQ(value, 2);
        ++inside;
      }
    };
    std::thread other(calls);
    calls();
    other.join();
    EXPECT_EQ(inside.load(), 2 * kCalls);
    EXPECT_EQ(dtrain_rank(), rank) << "allowed at any time";
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
  });
  EXPECT_EQ(ends, (std::vector<int>{0, 0}));
}

TEST(ApiTest, ForkedChildMayNotUseItsParentsJob) {
  const auto ends = Ranks::Run(2, [](int) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    const pid_t child = fork();
    if (child == 0) _exit(dtrain_barrier() == DTRAIN_ERROR_STATE ? 0 : 1);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(dtrain_barrier(), DTRAIN_OK);
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  });
  EXPECT_EQ(ends, (std::vector<int>{0, 0}));
}

TEST(ApiTest, PlacesFollowTheLaunchersMapping) {
  RanksOptions options;
  options.mapping = "(vector,(0,2,1))";  // round-robin over two nodes
  options.environment["DTRAIN_ADDRESS"] = "127.0.0.1";
  const auto ends = Ranks::Run(
      4,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
        EXPECT_EQ(dtrain_node_rank(), rank % 2);
        EXPECT_EQ(dtrain_local_rank(), rank / 2);
        EXPECT_EQ(dtrain_local_size(), 2);
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      options);
  EXPECT_EQ(ends, (std::vector<int>{0, 0, 0, 0}));
}

TEST(ApiTest, WithoutAMappingRanksOnOneHostAreOneNode) {
  const auto ends = Ranks::Run(3, [](int rank) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
    EXPECT_EQ(dtrain_local_rank(), rank);
    EXPECT_EQ(dtrain_local_size(), 3);
    EXPECT_EQ(dtrain_node_rank(), 0);
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  });
  EXPECT_EQ(ends, (std::vector<int>{0, 0, 0}));
}

TEST(ApiTest, RecordsAreSplitToFitTheServersLimits) {
  RanksOptions options;
  options.maxes = "kvsname_max=256 keylen_max=64 vallen_max=66";
  const auto ends = Ranks::Run(
      4,
      [](int) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
        int32_t one = 1;
        EXPECT_EQ(dtrain_allreduce(&one, &one, 1, DTRAIN_INT32, DTRAIN_SUM), DTRAIN_OK);
        EXPECT_EQ(one, 4);
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      options);
  EXPECT_EQ(ends, (std::vector<int>{0, 0, 0, 0}));
}

}  // namespace
}  // namespace dtrain::runtime
