// SPDX-License-Identifier: Apache-2.0
// Collectives in CUDA graphs.
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/component/runtime/nccl_judge.h"

namespace dtrain::runtime {
namespace {

// The driver's functions for graphs, which the runtime itself does not need.
struct Graphs {
  int (*begin)(abi::CuStream, int) = Of<int(abi::CuStream, int)>("cuStreamBeginCapture_v2");
  int (*end)(abi::CuStream, void**) = Of<int(abi::CuStream, void**)>("cuStreamEndCapture");
  int (*instantiate)(void**, void*, unsigned long long) =
      Of<int(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags");
  int (*launch)(void*, abi::CuStream) = Of<int(void*, abi::CuStream)>("cuGraphLaunch");
  int (*destroy)(void*) = Of<int(void*)>("cuGraphDestroy");
  int (*destroy_executable)(void*) = Of<int(void*)>("cuGraphExecDestroy");

 private:
  template <typename Function>
  static Function* Of(const char* name) {
    return OfFake<Function>("DTRAIN_CUDA_LIBRARY", name);
  }
};

constexpr int kGlobal = 0;

// N17: NCCL waits for a graph that lives before it lets go of a communicator.
TEST(NcclGraphs, HoldCollectivesAndHoldNobodyUpAtTheEnd) {
  for (const bool lives : {true, false}) {
    const auto ends = RunJobOf(2, OnNcclOf("fake_nccl"), [&](int rank) {
      ASSERT_OK(dtrain_init(nullptr));
      const Driver driver(rank);
      const Device::Scope scope(driver.device());
      const Graphs graphs;
      const abi::CuStream stream = driver.NewStream();
      void* const memory = driver.Allocate(400);
      EXPECT_EQ(SumOfOne(1), 2);
      ASSERT_EQ(graphs.begin(stream, kGlobal), 0);
      dtrain_options options = DTRAIN_OPTIONS_INIT;
      options.stream = stream;
      for (int i = 0; i < 3; ++i) {
        dtrain_handle handle = 0;
        ASSERT_OK(dtrain_allreduce_async(memory, memory, 100, DTRAIN_INT32, DTRAIN_SUM, &options,
                                         &handle));
        ASSERT_OK(dtrain_wait(handle));
      }
      void *graph = nullptr, *executable = nullptr;
      ASSERT_EQ(graphs.end(stream, &graph), 0) << "the capture was spoilt";
      ASSERT_EQ(graphs.instantiate(&executable, graph, 0), 0);
      ASSERT_EQ(graphs.destroy(graph), 0);
      for (int round = 0; round < 10; ++round) {
        const std::vector<int32_t> mine(100, rank + round);
        driver.Put(memory, mine.data(), 400, stream);
        ASSERT_EQ(graphs.launch(executable, stream), 0);
        std::vector<int32_t> all(100);
        driver.Get(all.data(), memory, 400, stream);
        EXPECT_EQ(all, std::vector<int32_t>(100, 4 * (1 + 2 * round)));
        EXPECT_EQ(SumOfOne(rank), 1);
      }
      if (!lives) {
        ASSERT_EQ(graphs.destroy_executable(executable), 0);
      }
      ASSERT_OK(dtrain_finalize());
      ExpectNoOffence();
    });
    EXPECT_EQ(ends, (std::vector<int>{0, 0}));
  }
}

TEST(NcclGraphs, RefuseWhatTheyCannotHold) {
  RunJobOf(2, OnNcclOf("fake_nccl"), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    const Device::Scope scope(driver.device());
    const Graphs graphs;
    const abi::CuStream stream = driver.NewStream();
    void* registered = nullptr;
    ASSERT_OK(dtrain_alloc_registrable(4, &registered));
    ASSERT_OK(dtrain_register(registered, nullptr, nullptr));
    ASSERT_EQ(graphs.begin(stream, kGlobal), 0);
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    options.stream = stream;
    int32_t value = 1;
    dtrain_handle handle = 0;
    EXPECT_EQ(
        dtrain_allreduce_async(&value, &value, 1, DTRAIN_INT32, DTRAIN_SUM, &options, &handle),
        DTRAIN_ERROR_UNSUPPORTED);
    // Nobody would ask the other ranks whether theirs is registered.
    EXPECT_EQ(dtrain_allreduce_async(registered, registered, 1, DTRAIN_INT32, DTRAIN_SUM, &options,
                                     &handle),
              DTRAIN_ERROR_UNSUPPORTED);
    EXPECT_NE(std::strstr(dtrain_last_error(), "dtrain_deregister"), nullptr);
    void* graph = nullptr;
    ASSERT_EQ(graphs.end(stream, &graph), 0);
    ASSERT_EQ(graphs.destroy(graph), 0);
    EXPECT_EQ(SumOfOne(1), 2);
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// Threads of ours look at events and free memory meanwhile.
TEST(NcclGraphs, AreNotSpoiltByCollectivesOfOtherThreads) {
  RunJobOf(2, OnNcclOf("fake_nccl", {{"DTRAIN_COLLECTIVE_TIMEOUT_SECONDS", "20"}}), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    const Device::Scope scope(driver.device());
    const Graphs graphs;
    const abi::CuStream stream = driver.NewStream(), other = driver.NewStream();
    void* const memory = driver.Allocate(400);
    void* const beside = driver.Allocate(400);
    EXPECT_EQ(SumOfOne(1), 2);
    dtrain_options on_other = DTRAIN_OPTIONS_INIT;
    on_other.stream = other;
    Gate gate(other, driver.device());
    dtrain_handle handle = 0;
    ASSERT_OK(
        dtrain_allreduce_async(beside, beside, 100, DTRAIN_INT32, DTRAIN_SUM, &on_other, &handle));
    ASSERT_OK(dtrain_barrier());
    ASSERT_EQ(graphs.begin(stream, kGlobal), 0);
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    options.stream = stream;
    dtrain_handle captured = 0;
    ASSERT_OK(
        dtrain_allreduce_async(memory, memory, 100, DTRAIN_INT32, DTRAIN_SUM, &options, &captured));
    // The watchdog looks at the first one, several times.
    gate.Open();
    const auto end = NcclRank::In(20);
    for (int done = 0; done == 0 && std::chrono::steady_clock::now() < end;) {
      std::thread([&] { EXPECT_EQ(dtrain_test(handle, &done), DTRAIN_OK); }).join();
    }
    ASSERT_OK(dtrain_wait(captured));
    void* graph = nullptr;
    ASSERT_EQ(graphs.end(stream, &graph), 0) << "the capture was spoilt";
    ASSERT_EQ(graphs.destroy(graph), 0);
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// What was made before is launched before, although nobody has waited for it: rank 1 has.
TEST(NcclGraphs, ComeBehindWhatIsOutstanding) {
  RunJobOf(2, OnNcclOf("fake_nccl", {{"DTRAIN_CYCLE_TIME", "200"}}), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    const Device::Scope scope(driver.device());
    const Graphs graphs;
    const abi::CuStream stream = driver.NewStream(), other = driver.NewStream();
    void* const memory = driver.Allocate(400);
    void* const beside = driver.Allocate(400);
    std::vector<int32_t> values(100, rank + 1);
    driver.Put(memory, values.data(), 400, stream);
    driver.Put(beside, values.data(), 400, other);
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    options.stream = other;
    dtrain_handle outstanding = 0, captured = 0;
    ASSERT_OK(dtrain_allreduce_async(beside, beside, 100, DTRAIN_INT32, DTRAIN_SUM, &options,
                                     &outstanding));
    if (rank == 1) {
      ASSERT_OK(dtrain_wait(outstanding));
    }
    ASSERT_EQ(graphs.begin(stream, kGlobal), 0);
    options.stream = stream;
    ASSERT_OK(dtrain_broadcast_async(memory, 100, DTRAIN_INT32, 0, &options, &captured));
    ASSERT_OK(dtrain_wait(captured));
    void *graph = nullptr, *executable = nullptr;
    ASSERT_EQ(graphs.end(stream, &graph), 0) << "the capture was spoilt";
    ASSERT_EQ(graphs.instantiate(&executable, graph, 0), 0);
    if (rank == 0) {
      ASSERT_OK(dtrain_wait(outstanding));
    }
    ASSERT_EQ(graphs.launch(executable, stream), 0);
    driver.Get(values.data(), memory, 400, stream);
    EXPECT_EQ(values, std::vector<int32_t>(100, 1));
    driver.Get(values.data(), beside, 400, other);
    EXPECT_EQ(values, std::vector<int32_t>(100, 3));
    ASSERT_EQ(graphs.destroy_executable(executable), 0);
    ASSERT_EQ(graphs.destroy(graph), 0);
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// Both wait within NCCL for the other ranks, which may come to them in another order.
TEST(NcclGraphs, TakeNothingWhileAnotherThreadMakesAGroup) {
  void* board = SharedBootstrap::Reserve();
  RunJobOf(2, OnNcclOf("fake_nccl"), [board](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    const Device::Scope scope(driver.device());
    const Graphs graphs;
    const abi::CuStream stream = driver.NewStream();
    void* const memory = driver.Allocate(400);
    EXPECT_EQ(SumOfOne(1), 2);
    const auto capture = [&] {
      dtrain_options options = DTRAIN_OPTIONS_INIT;
      options.stream = stream;
      EXPECT_EQ(graphs.begin(stream, kGlobal), 0);
      dtrain_handle handle = 0;
      const dtrain_status status =
          dtrain_allreduce_async(memory, memory, 100, DTRAIN_INT32, DTRAIN_SUM, &options, &handle);
      if (status == DTRAIN_OK) {
        EXPECT_EQ(dtrain_wait(handle), DTRAIN_OK) << dtrain_last_error();
      }
      void* graph = nullptr;
      EXPECT_EQ(graphs.end(stream, &graph), 0) << "the capture was spoilt";
      EXPECT_EQ(graphs.destroy(graph), 0);
      return status;
    };
    dtrain_group group = nullptr;
    const auto make = [&group] {
      EXPECT_EQ(dtrain_group_create(0, 0, &group), DTRAIN_OK) << dtrain_last_error();
    };
    SharedBootstrap ranks(board, rank, 2);
    if (rank == 0) {
      std::thread makes(make);
      const auto end = NcclRank::In(20);
      dtrain_status status = DTRAIN_OK;
      while (status == DTRAIN_OK && std::chrono::steady_clock::now() < end) status = capture();
      EXPECT_EQ(status, DTRAIN_ERROR_STATE);
      EXPECT_NE(std::strstr(dtrain_last_error(), "dtrain_group_create"), nullptr)
          << dtrain_last_error();
      EXPECT_TRUE(ranks.Exchange("", NcclRank::In(30)).ok());
      makes.join();
    } else {
      EXPECT_TRUE(ranks.Exchange("", NcclRank::In(30)).ok());
      make();
    }
    EXPECT_EQ(capture(), DTRAIN_OK) << dtrain_last_error();
    EXPECT_EQ(dtrain_group_size(group), 2);
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

}  // namespace
}  // namespace dtrain::runtime
