// SPDX-License-Identifier: Apache-2.0
// The C API of a job that runs on NCCL, through the fake libraries.
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/dtrain.h"
#include "runtime/nccl/libraries.h"
#include "tests/component/runtime/nccl_judge.h"

namespace dtrain::runtime {
namespace {

#define ASSERT_DONE(call) ASSERT_EQ(call, DTRAIN_OK) << dtrain_last_error()

std::vector<int> RunJob(int n, std::map<std::string, std::string> environment,
                        const std::function<void(int)>& body) {
  RanksOptions options;
  options.environment = std::move(environment);
  options.mapping = "(vector,(0,1," + std::to_string(n) + "))";
  return Ranks::Run(n, body, options);
}

std::map<std::string, std::string> OnNccl() {
  auto environment = FakeEnvironment();
  environment["DTRAIN_BACKEND"] = "nccl";
  return environment;
}

TEST(NcclApi, CollectivesOnGpuAndHostMemoryOfOneJob) {
  RunJob(3, OnNccl(), [](int rank) {
    ASSERT_DONE(dtrain_init(nullptr));
    EXPECT_STREQ(dtrain_backend(), "nccl");
    const Driver driver(rank);
    void* memory = nullptr;
    ASSERT_DONE(dtrain_alloc_device(1000 * sizeof(float), &memory));
    const std::vector<float> mine(1000, static_cast<float>(rank + 1));
    driver.Put(memory, mine.data(), 4000);
    ASSERT_DONE(dtrain_allreduce(memory, memory, 1000, DTRAIN_FLOAT32, DTRAIN_SUM));
    std::vector<float> all(1000);
    driver.Get(all.data(), memory, 4000);
    EXPECT_EQ(all, std::vector<float>(1000, 6));

    std::vector<float> host = mine;
    ASSERT_DONE(dtrain_allreduce(host.data(), host.data(), 1000, DTRAIN_FLOAT32, DTRAIN_AVG));
    EXPECT_EQ(host, std::vector<float>(1000, 2));
    ASSERT_DONE(dtrain_barrier());
    ASSERT_DONE(dtrain_free(memory));
    ASSERT_DONE(dtrain_finalize());
  });
}

TEST(NcclApi, AsynchronousAllreducesOfManySmallGpuBuffers) {
  RunJob(2, OnNccl(), [](int rank) {
    ASSERT_DONE(dtrain_init(nullptr));
    const Driver driver(rank);
    constexpr size_t kBuffers = 20;
    std::vector<void*> memory(kBuffers);
    std::vector<dtrain_handle> handles(kBuffers);
    for (size_t i = 0; i < kBuffers; ++i) {
      ASSERT_DONE(dtrain_alloc_device(400, &memory[i]));
      const std::vector<int32_t> mine(100, rank + static_cast<int>(i));
      driver.Put(memory[i], mine.data(), 400);
    }
    for (size_t i = 0; i < kBuffers; ++i) {
      ASSERT_DONE(dtrain_allreduce_async(memory[i], memory[i], 100, DTRAIN_INT32, DTRAIN_SUM,
                                         nullptr, &handles[i]));
    }
    for (size_t i = 0; i < kBuffers; ++i) {
      ASSERT_DONE(dtrain_wait(handles[i]));
      std::vector<int32_t> all(100);
      driver.Get(all.data(), memory[i], 400);
      EXPECT_EQ(all, std::vector<int32_t>(100, 1 + 2 * static_cast<int>(i)));
    }
    ASSERT_DONE(dtrain_finalize());
  });
}

TEST(NcclApi, GroupsHaveCommunicatorsOfTheirOwn) {
  RunJob(4, OnNccl(), [](int rank) {
    ASSERT_DONE(dtrain_init(nullptr));
    dtrain_group group = nullptr;
    ASSERT_DONE(dtrain_group_create(rank % 2, 0, &group));
    EXPECT_EQ(SumOfOne(rank, group), rank % 2 == 0 ? 2 : 4);
    ASSERT_DONE(dtrain_group_free(group));
    ASSERT_DONE(dtrain_finalize());
  });
}

// M5: nothing of it comes to NCCL, which would hang or mix up data.
TEST(NcclApi, RanksThatAskForDifferentThingsAreNamedOnAllOfThem) {
  RunJob(3, OnNccl(), [](int rank) {
    ASSERT_DONE(dtrain_init(nullptr));
    void* memory = nullptr;
    ASSERT_DONE(dtrain_alloc_device(64, &memory));
    EXPECT_EQ(dtrain_allreduce(memory, memory, rank == 2 ? 8 : 4, DTRAIN_INT32, DTRAIN_SUM),
              DTRAIN_ERROR_MISMATCH);
    const std::string text = dtrain_last_error();
    EXPECT_NE(text.find("ranks 0, 1 for allreduce sum of 4 int32; rank 2 for allreduce sum of 8 "
                        "int32"),
              std::string::npos)
        << text;
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
  });
}

TEST(NcclApi, ARankThatLeavesWhileAnotherIsInACollectiveIsNamedAtOnce) {
  for (const bool on_gpu : {true, false}) {
    void* board = SharedBootstrap::Reserve();
    RunJob(3, OnNccl(), [&](int rank) {
      ASSERT_DONE(dtrain_init(nullptr));
      std::vector<float> host(100, 1);
      void* data = host.data();
      if (on_gpu) {
        ASSERT_DONE(dtrain_alloc_device(400, &data));
      }
      ASSERT_DONE(dtrain_allreduce(data, data, 100, DTRAIN_FLOAT32, DTRAIN_SUM));
      // Nobody fails before all are through with the first one.
      ASSERT_TRUE(SharedBootstrap(board, rank, 3).Exchange("", NcclRank::In(30)).ok());
      if (rank == 1) {
        EXPECT_EQ(dtrain_finalize(), DTRAIN_ERROR_MISMATCH);
      } else {
        EXPECT_EQ(dtrain_allreduce(data, data, 100, DTRAIN_FLOAT32, DTRAIN_SUM),
                  DTRAIN_ERROR_MISMATCH);
      }
      const std::string text = dtrain_last_error();
      EXPECT_NE(text.find("rank 1 is leaving the job"), std::string::npos) << text;
      if (rank != 1) {
        EXPECT_NE(text.find("allreduce sum of 100 float32"), std::string::npos) << text;
      }
    });
  }
}

// Its zeros are the host's, wherever the others have their buffers.
TEST(NcclApi, ARankThatHasJoinedGoesAlongWithSumsOfGpuBuffers) {
  RunJob(3, OnNccl(), [](int rank) {
    ASSERT_DONE(dtrain_init(nullptr));
    const Driver driver(rank);
    constexpr size_t kCount = 300'000;  // the second one travels alone
    void* memory[2];
    for (void*& buffer : memory) ASSERT_DONE(dtrain_alloc_device(kCount * 4, &buffer));
    for (int step = 0; step < 2 * rank; ++step) {
      const std::vector<float> ones(kCount, 1);
      dtrain_handle handles[2];
      for (size_t i = 0; i < 2; ++i) {
        driver.Put(memory[i], ones.data(), kCount * 4);
        ASSERT_DONE(dtrain_allreduce_async(memory[i], memory[i], i == 0 ? 100 : kCount,
                                           DTRAIN_FLOAT32, DTRAIN_SUM, nullptr, &handles[i]));
      }
      for (size_t i = 0; i < 2; ++i) {
        ASSERT_DONE(dtrain_wait(handles[i]));
        std::vector<float> sum(kCount);
        driver.Get(sum.data(), memory[i], kCount * 4);
        EXPECT_EQ(sum[99], step < 2 ? 2 : 1);
        EXPECT_EQ(sum.back(), i == 0 ? 1 : sum[99]);
      }
    }
    int last = -1;
    ASSERT_DONE(dtrain_join(&last));
    EXPECT_EQ(last, 2);
    ASSERT_DONE(dtrain_barrier());
    ASSERT_DONE(dtrain_finalize());
  });
}

// With ncclCommSplit, which the second library does not have yet.
TEST(NcclApi, GroupsLeaveOutRanksAndOrderThemByKey) {
  for (const char* library : {"fake_nccl", "fake_nccl_old"}) {
    auto environment = FakeEnvironment(library);
    environment["DTRAIN_BACKEND"] = "nccl";
    RunJob(4, environment, [](int rank) {
      ASSERT_DONE(dtrain_init(nullptr));
      for (int round = 0; round < 3; ++round) {
        dtrain_group group = nullptr;
        ASSERT_DONE(dtrain_group_create(rank == 1 ? -1 : 0, -rank, &group));
        ASSERT_EQ(group == nullptr, rank == 1);
        EXPECT_EQ(SumOfOne(rank), 6);
        if (group == nullptr) continue;
        EXPECT_EQ(dtrain_group_rank(group), rank == 0 ? 2 : 3 - rank);
        EXPECT_EQ(SumOfOne(rank, group), 5);
        dtrain_options options = DTRAIN_OPTIONS_INIT;
        options.group = group;
        int32_t from_first = rank;
        dtrain_handle handle = 0;
        ASSERT_DONE(dtrain_broadcast_async(&from_first, 1, DTRAIN_INT32, 0, &options, &handle));
        ASSERT_DONE(dtrain_wait(handle));
        EXPECT_EQ(from_first, 3);
        // The last one is left to dtrain_finalize.
        if (round < 2) {
          ASSERT_DONE(dtrain_group_free(group));
        }
      }
      ASSERT_DONE(dtrain_finalize());
    });
  }
}

// Neither can run on both ranks before each rank has the group, which another thread makes.
TEST(NcclApi, AGroupIsMadeWhileTheRanksHaveDifferentCollectivesPending) {
  for (const char* library : {"fake_nccl", "fake_nccl_old"}) {
    auto environment = FakeEnvironment(library);
    environment["DTRAIN_BACKEND"] = "nccl";
    RunJob(2, environment, [](int rank) {
      ASSERT_DONE(dtrain_init(nullptr));
      const Driver driver(rank);
      const std::vector<int32_t> mine(100, 1);
      void* memory[2];
      for (void*& buffer : memory) {
        buffer = driver.Allocate(400);
        driver.Put(buffer, mine.data(), 400);
      }
      dtrain_handle handles[2] = {};
      const auto start = [&](size_t i) {
        dtrain_options options = DTRAIN_OPTIONS_INIT;
        options.name = (i == 0) == (rank == 0) ? "one" : "other";
        ASSERT_DONE(dtrain_allreduce_async(memory[i], memory[i], 100, DTRAIN_INT32, DTRAIN_SUM,
                                           &options, &handles[i]));
      };
      start(0);
      dtrain_group group = nullptr;
      std::thread makes([&group] {
        EXPECT_EQ(dtrain_group_create(0, 0, &group), DTRAIN_OK) << dtrain_last_error();
      });
      makes.join();
      start(1);
      for (size_t i = 0; i < 2; ++i) {
        ASSERT_DONE(dtrain_wait(handles[i]));
        std::vector<int32_t> all(100);
        driver.Get(all.data(), memory[i], 400);
        EXPECT_EQ(all, std::vector<int32_t>(100, 2));
      }
      EXPECT_EQ(dtrain_group_size(group), 2);
      ASSERT_DONE(dtrain_finalize());
    });
  }
}

// Their queue stays when the group has gone.
TEST(NcclApi, WhatAGroupHasDoneCanBeWaitedForWhenItIsFreed) {
  RunJob(2, OnNccl(), [](int rank) {
    ASSERT_DONE(dtrain_init(nullptr));
    const Driver driver(rank);
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    ASSERT_DONE(dtrain_group_create(0, 0, &options.group));
    const std::vector<int32_t> mine(100, rank);
    void* memory[2];
    dtrain_handle handles[2];
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_DONE(dtrain_alloc_device(400, &memory[i]));
      driver.Put(memory[i], mine.data(), 400);
      ASSERT_DONE(dtrain_allreduce_async(memory[i], memory[i], 100, DTRAIN_INT32, DTRAIN_MAX,
                                         &options, &handles[i]));
    }
    ASSERT_DONE(dtrain_group_free(options.group));
    for (const void* buffer : memory) {
      std::vector<int32_t> all(100);
      driver.Get(all.data(), buffer, 400);
      EXPECT_EQ(all, std::vector<int32_t>(100, 1));
    }
    int done = 0;
    ASSERT_DONE(dtrain_test(handles[0], &done));
    EXPECT_EQ(done, 1);
    ASSERT_DONE(dtrain_wait(handles[1]));
    EXPECT_EQ(dtrain_wait(handles[1]), DTRAIN_ERROR_INVALID_ARGUMENT);
    ASSERT_DONE(dtrain_finalize());
  });
}

TEST(NcclApi, WhatAGroupHasNotDoneFailsWhenItIsFreed) {
  auto environment = OnNccl();
  environment["FAKE_NCCL_ASYNC_ERROR"] = "1:3:2";
  RunJob(2, environment, [](int) {
    ASSERT_DONE(dtrain_init(nullptr));
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    ASSERT_DONE(dtrain_group_create(0, 0, &options.group));
    void* memory[4];
    for (void*& buffer : memory) ASSERT_DONE(dtrain_alloc_device(400, &buffer));
    dtrain_handle last = 0;  // does not end
    for (void* buffer : memory) {
      ASSERT_DONE(
          dtrain_allreduce_async(buffer, buffer, 100, DTRAIN_INT32, DTRAIN_MAX, &options, &last));
    }
    (void)dtrain_group_free(options.group);  // the failure may be known before, or not
    EXPECT_NE(dtrain_wait(last), DTRAIN_OK);
    EXPECT_NE(std::strstr(dtrain_last_error(), "unhandled system error"), nullptr)
        << dtrain_last_error();
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
  });
}

// M3, M4
TEST(NcclApi, AGroupThatNcclCannotMakeIsAnErrorOnAllRanksInTime) {
  for (const char* fault : {"FAKE_NCCL_FAIL_SPLIT", "FAKE_NCCL_HANG_SPLIT"}) {
    auto environment = OnNccl();
    environment[fault] = "1";
    environment["DTRAIN_NCCL_INIT_SECONDS"] = "5";
    RunJob(3, environment, [&](int rank) {
      ASSERT_DONE(dtrain_init(nullptr));
      dtrain_group group = nullptr;
      EXPECT_NE(dtrain_group_create(0, 0, &group), DTRAIN_OK);
      EXPECT_EQ(group, nullptr);
      const bool fails = std::string(fault) == "FAKE_NCCL_FAIL_SPLIT";
      EXPECT_NE(std::strstr(dtrain_last_error(), "ncclCommSplit"), nullptr) << dtrain_last_error();
      if (fails && rank != 1) {
        EXPECT_NE(std::strstr(dtrain_last_error(), "rank 1"), nullptr) << dtrain_last_error();
      }
      // Its communicator is gone with it.
      int32_t value = 1;
      EXPECT_NE(dtrain_allreduce(&value, &value, 1, DTRAIN_INT32, DTRAIN_SUM), DTRAIN_OK);
      EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
    });
  }
}

// M3
TEST(NcclApi, AFailureOfOneRanksNcclFailsAllWithItsReason) {
  auto environment = OnNccl();
  environment["FAKE_NCCL_ASYNC_ERROR"] = "1:3:2";
  RunJob(3, environment, [](int) {
    ASSERT_DONE(dtrain_init(nullptr));
    dtrain_status status = DTRAIN_OK;
    void* memory = nullptr;
    ASSERT_DONE(dtrain_alloc_device(4, &memory));
    for (int i = 0; i < 1000 && status == DTRAIN_OK; ++i) {
      status = dtrain_allreduce(memory, memory, 1, DTRAIN_INT32, DTRAIN_MAX);
    }
    EXPECT_EQ(status, DTRAIN_ERROR_DEVICE) << dtrain_last_error();
    EXPECT_NE(std::strstr(dtrain_last_error(), "unhandled system error"), nullptr)
        << dtrain_last_error();
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
  });
}

TEST(NcclApi, AJobWithoutGpusRunsOnCpus) {
  auto environment = FakeEnvironment();
  environment["FAKE_CUDA_DEVICES"] = "0";
  RunJob(2, environment, [](int) {
    ASSERT_DONE(dtrain_init(nullptr));
    EXPECT_STREQ(dtrain_backend(), "cpu");
    ASSERT_DONE(dtrain_finalize());
  });
}

}  // namespace
}  // namespace dtrain::runtime
