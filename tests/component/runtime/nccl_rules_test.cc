// SPDX-License-Identifier: Apache-2.0
// What NCCL does and forbids, by version, and that a job lives with it. The numbers are those of
// docs/nccl.md.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/component/runtime/nccl_judge.h"

namespace dtrain::runtime {
namespace {

class NcclRules : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Versions, NcclRules, testing::ValuesIn(NcclVersions()),
                         [](const auto& version) {
                           std::string name = version.param == "fake_nccl" ? "fake_nccl_2.28.9"
                                              : version.param == "fake_nccl_old"
                                                  ? "fake_nccl_2.14.3"
                                                  : version.param;
                           for (char& c : name) c = c == '.' ? '_' : c;
                           return name.substr(10);
                         });

// N1, N3, N4, N16, R3
TEST_P(NcclRules, AJobWithGroupsCommitsNoOffence) {
  RunJobOf(4, OnNcclOf(GetParam()), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    dtrain_group group = nullptr;
    ASSERT_OK(dtrain_group_create(rank % 2, 0, &group));
    // Only one rank has memory of the library's own.
    void* own = nullptr;
    ASSERT_OK(dtrain_alloc_device(4000, &own));
    void* const memory = rank == 0 ? own : driver.Allocate(4000);
    for (int step = 0; step < 50; ++step) {
      const std::vector<int32_t> mine(1000, rank + step);
      driver.Put(memory, mine.data(), 4000);
      dtrain_options options = DTRAIN_OPTIONS_INIT;
      options.group = step % 2 == 0 ? nullptr : group;
      dtrain_handle handle = 0;
      ASSERT_OK(dtrain_allreduce_async(memory, memory, 1000, DTRAIN_INT32, DTRAIN_SUM, &options,
                                       &handle));
      ASSERT_OK(dtrain_wait(handle));
      std::vector<int32_t> all(1000);
      driver.Get(all.data(), memory, 4000);
      const int32_t expected = step % 2 == 0 ? 6 + 4 * step : (rank % 2 == 0 ? 2 : 4) + 2 * step;
      ASSERT_EQ(all, std::vector<int32_t>(1000, expected));
      EXPECT_EQ(SumOfOne(rank), 6);
    }
    ASSERT_OK(dtrain_group_free(group));
    ASSERT_OK(dtrain_finalize());
    EXPECT_EQ(Seen("device_threads"), rank == 0 ? 2 : 1) << "rank 0 makes the unique id itself";
    EXPECT_EQ(Seen("registered"), 0) << "nobody has asked for it";
    ExpectNoOffence();
  });
}

// N2, N8: what the stream is given after the call does not wait for the collective, and the
// collective is not done before it is.
TEST_P(NcclRules, WorkBesideACollectiveOverlapsIt) {
  RunJobOf(2, OnNcclOf(GetParam()), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    EXPECT_EQ(SumOfOne(1), 2);
    const abi::CuStream stream = driver.NewStream();
    void* const memory = driver.Allocate(400);
    const std::vector<int32_t> ones(100, 1);
    driver.Put(memory, ones.data(), 400, stream);
    Gate gate(stream, driver.device());
    if (rank == 0) gate.Open();
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    options.stream = stream;
    dtrain_handle handle = 0;
    ASSERT_OK(
        dtrain_allreduce_async(memory, memory, 100, DTRAIN_INT32, DTRAIN_SUM, &options, &handle));
    // Behind it, both have enqueued theirs.
    ASSERT_OK(dtrain_barrier());
    if (rank == 0) {
      EXPECT_TRUE(driver.Idle(stream)) << "the stream waits for the collective already";
      int done = 1;
      ASSERT_OK(dtrain_test(handle, &done));
      EXPECT_EQ(done, 0);
    }
    ASSERT_OK(dtrain_barrier());
    gate.Open();
    ASSERT_OK(dtrain_wait(handle));
    std::vector<int32_t> all(100);
    driver.Get(all.data(), memory, 400, stream);
    EXPECT_EQ(all, std::vector<int32_t>(100, 2));
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// N6, N11: all ranks run the same pieces, wherever their buffers are.
TEST(NcclRulesOf, LargeBuffersOfHostAndGpuMeetInPieces) {
  RunJobOf(2, OnNcclOf("fake_nccl", {{"DTRAIN_COLLECTIVE_TIMEOUT_SECONDS", "50"}}), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    constexpr size_t kCount = (size_t{20} << 20) + 17;  // 80 MiB and a little, of float32
    std::vector<float> values(kCount);
    for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 1000 + 1);
    void* gpu = nullptr;
    ASSERT_OK(dtrain_alloc_device(kCount * 8, &gpu));
    driver.Put(gpu, values.data(), kCount * 4);
    void* const buffer = rank == 0 ? gpu : values.data();
    ASSERT_OK(dtrain_allreduce(buffer, buffer, kCount, DTRAIN_FLOAT32, DTRAIN_SUM));
    if (rank == 0) driver.Get(values.data(), gpu, kCount * 4);
    // Not an assertion for each of the 60 million: with a sanitizer these alone take a minute.
    size_t wrong = 0;
    for (size_t i = 0; i < kCount; ++i) {
      wrong += values[i] == static_cast<float>(2 * (i % 1000 + 1)) ? 0 : 1;
    }
    ASSERT_EQ(wrong, 0U);
    std::vector<float> both(2 * kCount);
    void* const output = rank == 1 ? static_cast<void*>(both.data()) : gpu;
    ASSERT_OK(dtrain_allgather(values.data(), output, kCount, DTRAIN_FLOAT32));
    if (rank == 0) driver.Get(both.data(), gpu, kCount * 8);
    for (size_t i = 0; i < kCount; ++i) {
      wrong += both[i] == values[i] && both[kCount + i] == values[i] ? 0 : 1;
    }
    ASSERT_EQ(wrong, 0U);
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// Rank r has r + 1 + s elements for rank s; the buffers are on the host, the GPU, or one of each.
TEST_P(NcclRules, AnAllToAllOfUnequalBlocksMovesWhatIsThere) {
  RunJobOf(3, OnNcclOf(GetParam()), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    const auto length = [](int from, int to) {
      return from == 2 && to == 0 ? 0 : static_cast<uint64_t>(1000 * from + 1 + to);
    };
    std::vector<uint64_t> counts;
    for (int r = 0; r < 3; ++r) {
      for (int s = 0; s < 3; ++s) counts.push_back(length(r, s));
    }
    std::vector<int32_t> input, expected;
    for (int r = 0; r < 3; ++r) {
      for (uint64_t i = 0; i < length(rank, r); ++i) input.push_back(100 * rank + r);
      for (uint64_t i = 0; i < length(r, rank); ++i) expected.push_back(100 * r + rank);
    }
    for (int places = 0; places < 4; ++places) {
      std::vector<int32_t> output(expected.size(), -1);
      void *from = input.data(), *to = output.data();
      // All on the GPU, all on the host, then another mixture on every rank.
      const bool gpu_in = places == 0 || (places > 1 && (rank + places) % 2 == 0);
      const bool gpu_out = places == 0 || (places > 1 && rank == 1);
      if (gpu_in) {
        from = driver.Allocate(input.size() * 4);
        driver.Put(from, input.data(), input.size() * 4);
      }
      if (gpu_out) to = driver.Allocate(output.size() * 4);
      dtrain_handle handle = 0;
      const auto here = [](void* memory, const uint64_t*) { return memory; };
      const uint64_t* const mine = &counts[static_cast<size_t>(rank) * 3];
      ASSERT_OK(dtrain_alltoallv_async(from, mine, 1, DTRAIN_INT32, here, to, nullptr, &handle));
      ASSERT_OK(dtrain_wait(handle));
      if (gpu_out) driver.Get(output.data(), to, output.size() * 4);
      EXPECT_EQ(output, expected) << places;
    }
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// N6: where the rows lie, which shows only when they are measured, says nothing about what runs
// behind them.
TEST(NcclRulesOf, RowsOnTheGpuAndASumOnTheHostRunInOneRound) {
  RunJobOf(2, OnNcclOf("fake_nccl"), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    // While the queue runs the first one, it gets the other two, on which all agree together then.
    struct Pause {
      std::atomic<bool> reached{false}, over{false};
      int32_t room[2] = {};
    } pause;
    const auto hold = [](void* context, const uint64_t*) -> void* {
      auto& here = *static_cast<Pause*>(context);
      here.reached.store(true);
      while (!here.over.load()) std::this_thread::yield();
      return here.room;
    };
    const auto give = [](void* memory, const uint64_t*) { return memory; };
    std::vector<int32_t> host(100, rank + 1);
    void* const rows = driver.Allocate(400);
    void* const all = driver.Allocate(800);
    driver.Put(rows, host.data(), 400);
    dtrain_handle handles[3] = {};
    ASSERT_OK(
        dtrain_allgatherv_async(&rank, 1, 1, DTRAIN_INT32, hold, &pause, nullptr, &handles[0]));
    while (!pause.reached.load()) std::this_thread::yield();
    EXPECT_EQ(dtrain_allgatherv_async(rows, 100, 1, DTRAIN_INT32, give, all, nullptr, &handles[1]),
              DTRAIN_OK);
    EXPECT_EQ(dtrain_allreduce_async(host.data(), host.data(), 100, DTRAIN_INT32, DTRAIN_SUM,
                                     nullptr, &handles[2]),
              DTRAIN_OK);
    pause.over.store(true);
    for (const dtrain_handle handle : handles) ASSERT_OK(dtrain_wait(handle));
    EXPECT_EQ(host, std::vector<int32_t>(100, 3));
    std::vector<int32_t> gathered(200), expected(200, 1);
    driver.Get(gathered.data(), all, 800);
    std::fill(expected.begin() + 100, expected.end(), 2);
    EXPECT_EQ(gathered, expected);
    EXPECT_EQ(pause.room[0], 0);
    EXPECT_EQ(pause.room[1], 1);
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// Of the host on all ranks: NCCL has nothing to do with it, whatever kind it is, and beside others.
TEST(NcclRulesOf, WhatIsOnTheHostOnAllRanksGoesOverTheCpus) {
  RunJobOf(3, OnNcclOf("fake_nccl"), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    ASSERT_OK(dtrain_group_create(0, 0, &options.group));
    EXPECT_EQ(SumOfOne(1), 3);
    const int calls = Seen("calls");
    int32_t value = rank;
    ASSERT_OK(dtrain_allreduce(&value, &value, 1, DTRAIN_INT32, DTRAIN_MAX));
    EXPECT_EQ(value, 2);
    std::vector<int32_t> all(3);
    dtrain_handle handle = 0;
    ASSERT_OK(dtrain_allgather_async(&rank, all.data(), 1, DTRAIN_INT32, &options, &handle));
    ASSERT_OK(dtrain_wait(handle));
    EXPECT_EQ(all, (std::vector<int32_t>{0, 1, 2}));
    // Rows of unequal numbers, for which a GPU would need an all-to-all.
    std::vector<int32_t> rows(static_cast<size_t>(rank + 1), rank), gathered(6);
    const auto give = [](void* memory, const uint64_t*) { return memory; };
    ASSERT_OK(dtrain_allgatherv_async(rows.data(), rows.size(), 1, DTRAIN_INT32, give,
                                      gathered.data(), &options, &handle));
    ASSERT_OK(dtrain_wait(handle));
    EXPECT_EQ(gathered, (std::vector<int32_t>{0, 1, 1, 2, 2, 2}));
    EXPECT_EQ(Seen("calls"), calls);
    // One rank that has joined gives the same zeros to both.
    void* const memory = driver.Allocate(4);
    driver.Put(memory, &rank, 4);
    dtrain_handle both[2] = {};
    value = rank;
    for (int i = 0; i < 2 && rank != 1; ++i) {
      void* const at = i == 0 ? static_cast<void*>(&value) : memory;
      ASSERT_OK(dtrain_allreduce_async(at, at, 1, DTRAIN_INT32, DTRAIN_SUM, nullptr, &both[i]));
    }
    for (int i = 0; i < 2 && rank != 1; ++i) ASSERT_OK(dtrain_wait(both[i]));
    ASSERT_OK(dtrain_join(nullptr));
    if (rank != 1) {
      EXPECT_EQ(value, 2);
      driver.Get(&value, memory, 4);
      EXPECT_EQ(value, 2);
    }
    EXPECT_GT(Seen("calls"), calls);
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// In whatever order of theirs, and one or the other of them on the host.
TEST(NcclRulesOf, BuffersOfHostAndGpuMeetByTheirNames) {
  RunJobOf(3, OnNcclOf("fake_nccl"), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    constexpr int kMany = 8;
    int32_t host[kMany];
    void* const gpu = driver.Allocate(kMany * 4);
    for (int step = 0; step < 20; ++step) {
      dtrain_handle handles[kMany];
      // The first two are on the host everywhere, the next two on the GPU, others here and there.
      const auto on_gpu = [&](int i) { return i < 4 ? i >= 2 : (i + rank + step) % 3 != 0; };
      const auto at = [&](int i) -> void* {
        return on_gpu(i) ? static_cast<char*>(gpu) + 4 * i : static_cast<void*>(&host[i]);
      };
      for (int j = 0; j < kMany; ++j) {
        const int i = (j * 3 + rank * step) % kMany;
        host[i] = rank + i;
        if (on_gpu(i)) driver.Put(at(i), &host[i], 4);
        const std::string name = std::to_string(i);
        dtrain_options options = DTRAIN_OPTIONS_INIT;
        options.name = name.c_str();
        ASSERT_OK(dtrain_allreduce_async(at(i), at(i), 1, DTRAIN_INT32, DTRAIN_SUM, &options,
                                         &handles[i]));
      }
      for (int i = 0; i < kMany; ++i) {
        ASSERT_OK(dtrain_wait(handles[i]));
        if (on_gpu(i)) driver.Get(&host[i], at(i), 4);
        EXPECT_EQ(host[i], 3 + 3 * i) << step << " " << i;
      }
    }
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

TEST(NcclRulesOf, AThreadWithoutAContextMayGiveMemoryOfTheGpu) {
  RunJobOf(2, OnNcclOf("fake_nccl"), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    void* const memory = driver.Allocate(4);
    driver.Put(memory, &rank, 4);
    const int calls = Seen("calls");
    std::thread([memory] {
      abi::CuContext context = nullptr;
      EXPECT_EQ((*LoadLibraries())->cuda.context_current(&context), 0);
      EXPECT_EQ(context, nullptr);
      EXPECT_EQ(dtrain_allreduce(memory, memory, 1, DTRAIN_INT32, DTRAIN_SUM), DTRAIN_OK)
          << dtrain_last_error();
    }).join();
    EXPECT_GT(Seen("calls"), calls) << "it was not taken for memory of the host";
    int32_t sum = -1;
    driver.Get(&sum, memory, 4);
    EXPECT_EQ(sum, 1);
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

TEST(NcclRulesOf, ADriverThatDoesNotSayWhereABufferIsIsAnError) {
  RunJobOf(1, OnNcclOf("fake_nccl"), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    void* const memory = Driver(rank).Allocate(400);
    OfFake<void(int)>("DTRAIN_CUDA_LIBRARY", "fake_cuda_fault")(rank);  // the context is lost
    EXPECT_EQ(dtrain_allreduce(memory, memory, 100, DTRAIN_INT32, DTRAIN_SUM), DTRAIN_ERROR_DEVICE);
    EXPECT_NE(std::strstr(dtrain_last_error(), "asking where a buffer is failed"), nullptr)
        << dtrain_last_error();
  });
}

// N3: the watchdog's question, which here takes most of the time.
TEST(NcclRulesOf, AQuestionDoesNotMeetTheEndOfACommunicator) {
  for (const char* version : {"fake_nccl_2.26.2", "fake_nccl"}) {
    RunJobOf(2, OnNcclOf(version, {{"FAKE_NCCL_QUESTION_MS", "100"}}), [](int rank) {
      ASSERT_OK(dtrain_init(nullptr));
      dtrain_group group = nullptr;
      ASSERT_OK(dtrain_group_create(0, 0, &group));
      EXPECT_EQ(SumOfOne(rank, group), 1);
      EXPECT_EQ(SumOfOne(1), 2);
      ASSERT_OK(dtrain_group_free(group));
      ASSERT_OK(dtrain_finalize());
      ExpectNoOffence();
    });
  }
}

// Behind a failure the communicator may be gone.
TEST(NcclRulesOf, NothingIsCalledOnceTheCallerHasGivenUp) {
  RunNccl(1, FakeEnvironment(), [](NcclRank&) {
    auto device = Device::Open((*LoadLibraries())->cuda, 0, std::nullopt);
    ASSERT_TRUE(device.ok()) << device.error().message;
    auto thread = IssueThread::Start(std::shared_ptr<const Device>(std::move(*device)));
    ASSERT_TRUE(thread.ok()) << thread.error().message;
    bool called = false;
    const auto outcome =
        (*thread)->Run([&called] { called = true; }, NcclRank::In(20), [] { return true; });
    EXPECT_TRUE(outcome == IssueThread::Outcome::kNotBegun);
    EXPECT_FALSE(called);
  });
}

// N7
TEST(NcclRulesOf, MemoryOfAnotherGpuIsRefusedAndTheJobGoesOn) {
  RunJobOf(2, OnNcclOf("fake_nccl"), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    void* const memory = driver.AllocateOn(5, 400);
    EXPECT_EQ(dtrain_allreduce(memory, memory, 100, DTRAIN_INT32, DTRAIN_SUM),
              DTRAIN_ERROR_INVALID_ARGUMENT);
    const std::string text = dtrain_last_error();
    EXPECT_NE(text.find("memory of GPU 5"), std::string::npos) << text;
    dtrain_handle handle = 0;
    EXPECT_EQ(
        dtrain_allreduce_async(memory, memory, 100, DTRAIN_INT32, DTRAIN_SUM, nullptr, &handle),
        DTRAIN_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(SumOfOne(1), 2);
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// N8: nobody waits for it on the host.
TEST(NcclRulesOf, TheTimeLimitIsThatOfTheGpusWork) {
  auto environment = OnNcclOf("fake_nccl");
  environment["DTRAIN_COLLECTIVE_TIMEOUT_SECONDS"] = kShortTimeout;
  RunJobOf(2, environment, [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    EXPECT_EQ(SumOfOne(1), 2);
    void* const memory = driver.Allocate(400);
    const abi::CuStream stream = driver.NewStream();
    Gate gate(stream, driver.device());
    if (rank == 0) gate.Open();
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    options.stream = stream;
    options.name = "gradient";
    dtrain_handle handle = 0;
    ASSERT_OK(
        dtrain_allreduce_async(memory, memory, 100, DTRAIN_INT32, DTRAIN_SUM, &options, &handle));
    ASSERT_OK(dtrain_wait(handle));
    // The other rank may be late by one time limit.
    const auto end = NcclRank::In(2 * std::atoi(kShortTimeout) + 12);
    // The gate must be open when the abort waits for the whole GPU.
    dtrain_status status = DTRAIN_OK;
    std::thread opens([&] {
      while (Seen("aborts") == 0 && std::chrono::steady_clock::now() < end)
        std::this_thread::yield();
      gate.Open();
    });
    while (status == DTRAIN_OK && std::chrono::steady_clock::now() < end) {
      status = dtrain_barrier();
    }
    opens.join();
    EXPECT_EQ(status, DTRAIN_ERROR_TIMEOUT) << dtrain_last_error();
    EXPECT_NE(std::strstr(dtrain_last_error(), "(allreduce sum of 100 int32) was not done in time"),
              nullptr)
        << dtrain_last_error();
  });
}

// N10: the legacy stream is of no concern to ours.
TEST(NcclRulesOf, MemoryIsZeroWhateverTheLegacyStreamDoes) {
  RunJobOf(1, OnNcclOf("fake_nccl"), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    Gate gate(nullptr, driver.device());
    void* memory = nullptr;
    ASSERT_OK(dtrain_alloc_device(4000, &memory));
    std::vector<char> bytes(4000, 'x');
    driver.Get(bytes.data(), memory, bytes.size(), driver.NewStream());
    EXPECT_EQ(bytes, std::vector<char>(4000, 0));
    gate.Open();
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// N12, N18: a block that is freed is somebody else's at once.
TEST(NcclRulesOf, MemoryIsFreedWhenTheCollectiveIsThrough) {
  RunJobOf(2, OnNcclOf("fake_nccl"), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    const abi::CuStream stream = driver.NewStream();
    void* const result = driver.Allocate(4000);
    for (int step = 0; step < 100; ++step) {
      void* memory = nullptr;
      ASSERT_OK(dtrain_alloc_device(4000, &memory));
      const std::vector<int32_t> mine(1000, rank + step);
      driver.Put(memory, mine.data(), 4000, stream);
      dtrain_options options = DTRAIN_OPTIONS_INIT;
      options.stream = stream;
      dtrain_handle handle = 0;
      ASSERT_OK(dtrain_allreduce_async(memory, result, 1000, DTRAIN_INT32, DTRAIN_SUM, &options,
                                       &handle));
      ASSERT_OK(dtrain_wait(handle));
      ASSERT_OK(dtrain_free(memory));
      std::vector<int32_t> all(1000);
      driver.Get(all.data(), result, 4000, stream);
      ASSERT_EQ(all, std::vector<int32_t>(1000, 1 + 2 * step));
    }
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// N13, T11: NCCL gives up first, and its reason is everybody's.
TEST(NcclRulesOf, AConnectionThatNcclGivesUpIsNamedOnAllRanks) {
  RunJobOf(2, OnNcclOf("fake_nccl", {{"FAKE_NCCL_REFUSED", "1"}, {"FAKE_TIME_SCALE", "0.02"}}),
           [](int) {
             EXPECT_NE(dtrain_init(nullptr), DTRAIN_OK);
             EXPECT_NE(std::strstr(dtrain_last_error(), "connect to 127.0.0.1"), nullptr)
                 << dtrain_last_error();
             EXPECT_NE(std::strstr(dtrain_last_error(), "rank 1"), nullptr) << dtrain_last_error();
           });
}

// N14: every version lets some rank wait for ever.
TEST(NcclRulesOf, SlicesOfOneGpuAreRefusedOnAllRanks) {
  for (const char* version : {"fake_nccl", "fake_nccl_2.30.3", "fake_nccl_2.30.7"}) {
    RunJobOf(2, OnNcclOf(version, {{"FAKE_CUDA_MIG", "1"}}), [](int) {
      EXPECT_EQ(dtrain_init(nullptr), DTRAIN_ERROR_DEVICE);
      EXPECT_NE(std::strstr(dtrain_last_error(), "as slices of it"), nullptr)
          << dtrain_last_error();
    });
  }
  for (const char* version : {"fake_nccl_2.30.3", "fake_nccl_2.30.7"}) {
    RunJobOf(2, OnNcclOf(version, {{"FAKE_CUDA_MIG", "1"}, {"NCCL_MULTI_RANK_GPU_ENABLE", "1"}}),
             [](int) {
               ASSERT_OK(dtrain_init(nullptr));
               EXPECT_EQ(SumOfOne(1), 2);
               ASSERT_OK(dtrain_finalize());
             });
  }
}

// N5, N15, N20: two communicators with work that does not end, in every version.
TEST_P(NcclRules, AFailureEndsAllCommunicatorsTogether) {
  RunJobOf(2,
           OnNcclOf(GetParam(), {{"FAKE_NCCL_ASYNC_ERROR", "1:3:6"},
                                 {"DTRAIN_COLLECTIVE_TIMEOUT_SECONDS", kShortTimeout}}),
           [](int rank) {
             ASSERT_OK(dtrain_init(nullptr));
             const Driver driver(rank);
             dtrain_group group = nullptr;
             ASSERT_OK(dtrain_group_create(0, 0, &group));
             void* const memory = driver.Allocate(800);
             dtrain_status status = DTRAIN_OK;
             for (int step = 0; step < 5 && status == DTRAIN_OK; ++step) {
               for (const dtrain_group where : {dtrain_group{nullptr}, group}) {
                 dtrain_options options = DTRAIN_OPTIONS_INIT;
                 options.group = where;
                 dtrain_handle handle = 0;
                 char* const at = static_cast<char*>(memory) + (where == nullptr ? 0 : 400);
                 status = dtrain_allreduce_async(at, at, 100, DTRAIN_INT32, DTRAIN_SUM, &options,
                                                 &handle);
                 if (status == DTRAIN_OK) status = dtrain_wait(handle);
               }
             }
             const auto end = NcclRank::In(30);
             while (status == DTRAIN_OK && std::chrono::steady_clock::now() < end) {
               status = dtrain_barrier();
             }
             EXPECT_NE(status, DTRAIN_OK);
             EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
             EXPECT_EQ(Seen("aborts"), 2);
             EXPECT_EQ(Seen("destroys"), 0);
             ExpectNoOffence();
           });
}

// N22: what a part's end leaves behind must not be met by the job's next call.
TEST(NcclRulesOf, AGroupWhoseSplitFailsEverywhereIsMadeFromNothing) {
  RunJobOf(2, OnNcclOf("fake_nccl", {{"FAKE_NCCL_FAIL_SPLITS", "1"}}), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    dtrain_group group = nullptr;
    ASSERT_OK(dtrain_group_create(0, -rank, &group));
    EXPECT_EQ(dtrain_group_rank(group), 1 - rank);
    EXPECT_EQ(SumOfOne(rank + 1, group), 3);
    EXPECT_EQ(SumOfOne(1), 2);
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// N23
TEST(NcclRulesOf, ARankWithoutAGroupTakesNoPartInASplit) {
  RunJobOf(3, OnNcclOf("fake_nccl", {{"FAKE_NCCL_FAIL_SPLITS", "1"}}), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    dtrain_group group = nullptr;
    ASSERT_OK(dtrain_group_create(rank == 1 ? -1 : 0, 0, &group));
    EXPECT_EQ(group == nullptr, rank == 1);
    EXPECT_EQ(SumOfOne(1), 3);
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// NCCL would refuse two ranks of a group on one GPU.
TEST(NcclRulesOf, AGroupHasTheJobsGpuWhateverTheThreadThatMakesItUses) {
  for (const char* version : {"fake_nccl", "fake_nccl_old"}) {
    RunJobOf(3, OnNcclOf(version), [](int rank) {
      ASSERT_OK(dtrain_init(nullptr));
      const CudaApi& cuda = (*LoadLibraries())->cuda;
      abi::CuDevice device = 0;
      abi::CuContext context = nullptr;
      ASSERT_EQ(cuda.device_get(&device, 5), 0);
      ASSERT_EQ(cuda.primary_retain(&context, device), 0);
      ASSERT_EQ(cuda.context_push(context), 0);
      dtrain_options options = DTRAIN_OPTIONS_INIT;
      ASSERT_OK(dtrain_group_create(rank < 2 ? 0 : -1, 0, &options.group));
      ASSERT_EQ(cuda.context_pop(&context), 0);
      if (rank < 2) {
        EXPECT_EQ(SumOfOne(rank + 1, options.group), 3);
      }
      EXPECT_EQ(SumOfOne(1), 3);
      ASSERT_OK(dtrain_finalize());
      ExpectNoOffence();
    });
  }
}

// What waits for a partner can find none before the group is there: the time does not count.
TEST(NcclRulesOf, AGroupThatTakesLongToMakeIsNoReasonToGiveUpOthers) {
  RunJobOf(3,
           OnNcclOf("fake_nccl", {{"DTRAIN_COLLECTIVE_TIMEOUT_SECONDS", kShortTimeout},
                                  {"FAKE_NCCL_INIT_MS", "1:0"}}),
           [](int rank) {
             ASSERT_OK(dtrain_init(nullptr));
             const Driver driver(rank);
             const std::vector<int32_t> mine(100, 1);
             void* memory[2];
             for (void*& buffer : memory) {
               buffer = driver.Allocate(400);
               driver.Put(buffer, mine.data(), 400);
             }
             const std::string late = "1:" + std::to_string(std::atoi(kShortTimeout) * 1200);
             setenv("FAKE_NCCL_INIT_MS", late.c_str(), 1);
             dtrain_handle handles[2] = {};
             const auto start = [&](size_t i) {
               dtrain_options options = DTRAIN_OPTIONS_INIT;
               options.name = i == 0 ? "one" : "other";
               ASSERT_OK(dtrain_allreduce_async(memory[i], memory[i], 100, DTRAIN_INT32, DTRAIN_SUM,
                                                &options, &handles[i]));
             };
             // Neither is pending on all ranks.
             if (rank != 1) start(0);
             if (rank != 0) start(1);
             dtrain_group group = nullptr;
             std::thread makes([rank, &group] {
               EXPECT_EQ(dtrain_group_create(rank < 2 ? 0 : -1, 0, &group), DTRAIN_OK)
                   << dtrain_last_error();
             });
             makes.join();
             if (rank == 1) start(0);
             if (rank == 0) start(1);
             for (size_t i = 0; i < 2; ++i) {
               ASSERT_OK(dtrain_wait(handles[i]));
               std::vector<int32_t> all(100);
               driver.Get(all.data(), memory[i], 400);
               EXPECT_EQ(all, std::vector<int32_t>(100, 3));
             }
             EXPECT_EQ(dtrain_group_size(group), rank < 2 ? 2 : 3);
             ASSERT_OK(dtrain_finalize());
             ExpectNoOffence();
           });
}

// N24
TEST_P(NcclRules, AnEnvironmentThatMakesCallsNonBlockingIsRefused) {
  RunJobOf(2, OnNcclOf(GetParam(), {{"NCCL_COMM_BLOCKING", "0"}}), [](int) {
    EXPECT_EQ(dtrain_init(nullptr), DTRAIN_ERROR_ENVIRONMENT);
    EXPECT_NE(std::strstr(dtrain_last_error(), "NCCL_COMM_BLOCKING=0"), nullptr)
        << dtrain_last_error();
  });
}

}  // namespace
}  // namespace dtrain::runtime
