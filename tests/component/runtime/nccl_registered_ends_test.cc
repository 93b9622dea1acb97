// SPDX-License-Identifier: Apache-2.0
// How registered memory goes, and what goes wrong with it (N16, N18).
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/component/runtime/nccl_registered.h"

namespace dtrain::runtime::registered {
namespace {

// N18: NCCL's memory goes at once, whoever still works in it.
TEST(NcclRegisteredOf, MemoryGoesWhenNothingInFlightUsesIt) {
  enum class Way { kFree, kDeregister, kGroup, kFinalize };
  for (const std::string& version : Registering()) {
    for (const Way way : {Way::kFree, Way::kDeregister, Way::kGroup, Way::kFinalize}) {
      RunJobOf(2, OnNcclOf(version), [way](int rank) {
        ASSERT_OK(dtrain_init(nullptr));
        const Driver driver(rank);
        dtrain_group group = nullptr;
        ASSERT_OK(dtrain_group_create(0, 0, &group));
        char* const own = MakeRegistered(kBytes, group);
        const abi::CuStream stream = driver.NewStream();
        Gate gate(stream, driver.device());
        dtrain_options options = DTRAIN_OPTIONS_INIT;
        options.group = group;
        options.stream = stream;
        dtrain_handle handle = 0;
        ASSERT_OK(
            dtrain_allreduce_async(own, own, kCount, DTRAIN_INT32, DTRAIN_SUM, &options, &handle));
        ASSERT_OK(dtrain_wait(handle));
        // Long enough that a call which does not wait has been made, in most of all these runs.
        const int calls = Seen("calls");
        std::thread opens([&] {
          const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
          while (Seen("calls") == calls && std::chrono::steady_clock::now() < end) {
            std::this_thread::yield();
          }
          gate.Open();
        });
        if (way == Way::kFree) {
          ASSERT_OK(dtrain_free(own));
        } else if (way == Way::kDeregister) {
          ASSERT_OK(dtrain_deregister(own, group));
        } else if (way == Way::kGroup) {
          ASSERT_OK(dtrain_group_free(group));
        }
        if (way != Way::kFinalize) {
          ASSERT_OK(dtrain_barrier());
        }
        ASSERT_OK(dtrain_finalize());
        opens.join();
        ExpectNoOffence();
        EXPECT_EQ(Seen("registered"), 1);
      });
    }
  }
}

// What the program itself has enqueued there is over, too.
TEST(NcclRegisteredOf, MemoryStaysUntilTheGpuIsThroughWithIt) {
  RunJobOf(1, OnNcclOf("fake_nccl"), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    char* const own = MakeRegistered(kBytes);
    const abi::CuStream stream = driver.NewStream();
    Gate gate(stream, driver.device());
    const CudaApi& cuda = (*LoadLibraries())->cuda;
    {
      const Device::Scope scope(driver.device());
      ASSERT_EQ(cuda.memset8(reinterpret_cast<uintptr_t>(own), 1, kBytes, stream), 0);
    }
    std::atomic<bool> freed{false};
    std::thread opens([&] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
      while (!freed.load() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      EXPECT_FALSE(freed.load());
      gate.Open();
    });
    ASSERT_OK(dtrain_free(own));
    freed.store(true);
    opens.join();
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// All ranks hear of it, none has it registered, and the job goes on.
TEST(NcclRegisteredOf, WhatOneRankCannotRegisterIsRegisteredOnNone) {
  for (const std::string& version : Registering()) {
    for (const char* fault : {"FAKE_NCCL_REGISTERS_NOT", "FAKE_NCCL_FAIL_REGISTER"}) {
      RunJobOf(3, OnNcclOf(version, {{fault, "1"}}), [&](int rank) {
        ASSERT_OK(dtrain_init(nullptr));
        const Driver driver(rank);
        void* own = nullptr;
        ASSERT_OK(dtrain_alloc_registrable(kBytes, &own));
        int registered = -1;
        const dtrain_status status = dtrain_register(own, nullptr, &registered);
        EXPECT_EQ(registered, 0);
        if (std::string(fault) == "FAKE_NCCL_FAIL_REGISTER") {
          EXPECT_EQ(status, DTRAIN_ERROR_DEVICE);
          EXPECT_TRUE(LastErrorSays("rank 1: ncclCommRegister: unhandled system error"))
              << dtrain_last_error();
          EXPECT_TRUE(LastErrorSays("registered on no rank")) << dtrain_last_error();
        } else {
          EXPECT_EQ(status, DTRAIN_OK) << dtrain_last_error();
        }
        testing::internal::CaptureStderr();
        ExpectSum(driver, own, own, rank, 1, true);
        ExpectSum(driver, own, own, rank, 2, false);
        EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "nothing is copied";
        EXPECT_EQ(Seen("registered"), 0);
        ASSERT_OK(dtrain_free(own));
        ASSERT_OK(dtrain_finalize());
        ExpectNoOffence();
      });
    }
  }
}

TEST(NcclRegisteredOf, RanksThatGiveDifferentMemoryAreNamedAndTheJobGoesOn) {
  RunJobOf(3, OnNcclOf("fake_nccl"), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    void *own = nullptr, *plain = nullptr;
    ASSERT_OK(dtrain_alloc_registrable(rank == 1 ? 8000 : 4000, &own));
    ASSERT_OK(dtrain_alloc_device(4000, &plain));
    EXPECT_EQ(dtrain_register(own, nullptr, nullptr), DTRAIN_ERROR_MISMATCH);
    EXPECT_TRUE(LastErrorSays("ranks 0, 2 for registering 4000 bytes; rank 1 for registering 8000"))
        << dtrain_last_error();
    EXPECT_EQ(dtrain_register(rank == 2 ? plain : own, nullptr, nullptr), DTRAIN_ERROR_MISMATCH);
    EXPECT_TRUE(
        LastErrorSays("rank 2 for registering memory that is not of "
                      "dtrain_alloc_registrable"))
        << dtrain_last_error();
    for (void* const bad : {static_cast<void*>(nullptr), plain}) {
      EXPECT_EQ(dtrain_register(bad, nullptr, nullptr), DTRAIN_ERROR_INVALID_ARGUMENT);
      EXPECT_EQ(dtrain_deregister(bad, nullptr), DTRAIN_ERROR_INVALID_ARGUMENT);
    }
    ASSERT_OK(dtrain_deregister(own, nullptr));  // nothing to do
    EXPECT_EQ(SumOfOne(1), 3);
    // Another call of a rank ends the job, as with all that wait for each other.
    if (rank == 0) {
      int32_t value = 1;
      EXPECT_EQ(dtrain_allreduce(&value, &value, 1, DTRAIN_INT32, DTRAIN_SUM),
                DTRAIN_ERROR_MISMATCH);
    } else {
      EXPECT_EQ(dtrain_register(own, nullptr, nullptr), DTRAIN_ERROR_MISMATCH);
    }
    EXPECT_TRUE(LastErrorSays("is how dtrain_register begins")) << dtrain_last_error();
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
    ExpectNoOffence();
  });
}

// By its end, and not by a time limit: with that the ranks would still run at the test's deadline.
TEST(NcclRegisteredOf, ARankThatDiesInBetweenIsNamedByTheOthersInTime) {
  for (const std::string& version : Registering()) {
    for (const bool registers : {true, false}) {
      SCOPED_TRACE(version + (registers ? " registers" : " sums"));
      void* board = SharedBootstrap::Reserve();
      RunJobOf(3, OnNcclOf(version, {{"DTRAIN_COLLECTIVE_TIMEOUT_SECONDS", "600"}}),
               [registers, board](int rank) {
                 ASSERT_OK(dtrain_init(nullptr));
                 const Driver driver(rank);
                 char* const own = MakeRegistered(kBytes);
                 ExpectSum(driver, own, own, rank, 1, true);
                 // Nobody dies before all are through with the first one.
                 ASSERT_TRUE(SharedBootstrap(board, rank, 3).Exchange("", NcclRank::In(30)).ok());
                 if (rank == 1) _exit(7);
                 dtrain_status status = DTRAIN_OK;
                 for (int i = 0; i < 1000 && status == DTRAIN_OK; ++i) {
                   status = registers
                                ? dtrain_register(own, nullptr, nullptr)
                                : dtrain_allreduce(own, own, kCount, DTRAIN_INT32, DTRAIN_SUM);
                 }
                 EXPECT_NE(status, DTRAIN_OK);
                 EXPECT_TRUE(LastErrorSays("rank 1")) << dtrain_last_error();
                 EXPECT_NE(dtrain_free(own), DTRAIN_OK);
                 EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
                 EXPECT_EQ(Seen("ended_inside") + Seen("after_end"), 0);
                 EXPECT_EQ(Seen("freed_registered") + Seen("lost_footing"), 0);
               },
               {{1, 7}});
    }
  }
}

// Its call does not come back, and nobody waits for it longer than for any other of NCCL's.
TEST(NcclRegisteredOf, ARegistrationThatHangsEndsTheJobInTime) {
  const auto environment =
      OnNcclOf("fake_nccl", {{"FAKE_NCCL_HANG_REGISTER", "1"}, {"DTRAIN_NCCL_INIT_SECONDS", "2"}});
  RunJobOf(2, environment, [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    void* own = nullptr;
    ASSERT_OK(dtrain_alloc_registrable(kBytes, &own));
    EXPECT_NE(dtrain_register(own, nullptr, nullptr), DTRAIN_OK);
    EXPECT_TRUE(LastErrorSays("ncclCommRegister did not come back in time")) << dtrain_last_error();
    if (rank == 0) {
      EXPECT_TRUE(LastErrorSays("rank 1")) << dtrain_last_error();
    }
    EXPECT_EQ(Seen("ended_inside") + Seen("after_end"), 0);
  });
}

TEST(NcclRegisteredOf, AFailureLeavesTheMemoryAsItIs) {
  for (const std::string& version : Registering()) {
    RunJobOf(
        2,
        OnNcclOf(version, {{"FAKE_NCCL_ASYNC_ERROR", "1:3:6"},
                           {"DTRAIN_COLLECTIVE_TIMEOUT_SECONDS", kShortTimeout}}),
        [](int rank) {
          ASSERT_OK(dtrain_init(nullptr));
          const Driver driver(rank);
          char* const own = MakeRegistered(kBytes);
          dtrain_status status = DTRAIN_OK;
          for (int i = 0; i < 1000 && status == DTRAIN_OK; ++i) {
            status = dtrain_allreduce(own, own, kCount, DTRAIN_INT32, DTRAIN_SUM);
          }
          EXPECT_NE(status, DTRAIN_OK);
          testing::internal::CaptureStderr();
          EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
          const std::string said = testing::internal::GetCapturedStderr();
          EXPECT_NE(said.find(std::to_string(kBytes) + " bytes of GPU memory"), std::string::npos)
              << said;
          EXPECT_EQ(Seen("aborts"), 1);
          ExpectNoOffence();
        });
  }
}

TEST(NcclRegisteredOf, OnCpusThereIsNothingToDo) {
  RunJobOf(2, {{"DTRAIN_BACKEND", "cpu"}}, [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    void* memory = nullptr;
    ASSERT_OK(dtrain_alloc_registrable(kBytes, &memory));
    int registered = -1;
    ASSERT_OK(dtrain_register(memory, nullptr, &registered));
    EXPECT_EQ(registered, 0);
    auto* const values = static_cast<int32_t*>(memory);
    for (size_t i = 0; i < kCount; ++i) values[i] = rank;
    ASSERT_OK(dtrain_allreduce(values, values, kCount, DTRAIN_INT32, DTRAIN_SUM));
    EXPECT_EQ(values[kCount - 1], 1);
    ASSERT_OK(dtrain_deregister(memory, nullptr));
    ASSERT_OK(dtrain_free(memory));
    ASSERT_OK(dtrain_finalize());
  });
}

}  // namespace
}  // namespace dtrain::runtime::registered
