// SPDX-License-Identifier: Apache-2.0
// What nccl_rules_test.cc leaves open: threads, order, and ends that NCCL cannot stand.
#include "tests/component/runtime/nccl_judge.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace dtrain::runtime {
namespace {

using Numbers = std::vector<int32_t>;

bool Says(const std::string& part) {
  return std::strstr(dtrain_last_error(), part.c_str()) != nullptr;
}

dtrain_options On(dtrain_group group, abi::CuStream stream = nullptr, const char* name = nullptr) {
  dtrain_options options = DTRAIN_OPTIONS_INIT;
  options.group = group;
  options.stream = stream;
  options.name = name;
  return options;
}

// N3, N4
TEST(NcclJudge, CallsMakeNoThreadsAndNobodyJoinsAJobTwice) {
  for (const std::string& version : NcclVersions()) {
    RunJobOf(2, OnNcclOf(version), [](int rank) {
      ASSERT_OK(dtrain_init(nullptr));
      const Driver driver(rank);
      void* const memory = driver.Allocate(400);
      for (int i = 0; i < 30; ++i) {
        ASSERT_OK(dtrain_allreduce(memory, memory, 100, DTRAIN_INT32, DTRAIN_MAX));
        ASSERT_OK(dtrain_broadcast(memory, 100, DTRAIN_INT32, i % 2));
      }
      ASSERT_OK(dtrain_finalize());
      ExpectNoOffence();
    });
  }
}

// N5, N19: NCCL would free what the thread inside still uses.
TEST(NcclJudge, AnInitialisationThatIsGivenUpIsNotAbortedUnderItsThread) {
  for (const char* version : {"fake_nccl_old", "fake_nccl_2.18.6", "fake_nccl_2.26.2"}) {
    RunJobOf(2,
             OnNcclOf(version, {{"FAKE_NCCL_HANG_INIT", "1"}, {"DTRAIN_NCCL_INIT_SECONDS", "0.5"}}),
             [](int) {
               const auto begin = std::chrono::steady_clock::now();
               EXPECT_NE(dtrain_init(nullptr), DTRAIN_OK);
               EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
               EXPECT_TRUE(Says("ncclCommInitRankConfig") || Says("NCCL")) << dtrain_last_error();
               EXPECT_EQ(Seen("ended_inside"), 0);
               EXPECT_EQ(Seen("after_end"), 0);
             });
  }
}

// N9
TEST(NcclJudge, ARankWithoutNcclIsNeverPassedOverInSilence) {
  auto environment = OnNcclOf("fake_nccl");
  environment["DTRAIN_BACKEND"] = "auto";
  RunJobOf(3, environment, [](int rank) {
    if (rank == 1) setenv("DTRAIN_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
    EXPECT_NE(dtrain_init(nullptr), DTRAIN_OK);
    EXPECT_TRUE(Says("rank 1")) << dtrain_last_error();
    EXPECT_TRUE(Says("/nowhere/libnccl.so.2")) << dtrain_last_error();
  });
}

// N11: what the host gives to one collective is not overwritten for the next.
TEST(NcclJudge, StagedBuffersOfSeveralStreamsKeepTheirData) {
  RunJobOf(2, OnNcclOf("fake_nccl"), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    constexpr size_t kCount = 5000, kBuffers = 4;
    abi::CuStream streams[kBuffers];
    void* outputs[kBuffers];
    for (size_t b = 0; b < kBuffers; ++b) {
      streams[b] = driver.NewStream();
      outputs[b] = driver.Allocate(kCount * 4);
    }
    for (int step = 0; step < 20; ++step) {
      std::vector<Numbers> inputs;
      dtrain_handle handles[kBuffers];
      for (size_t b = 0; b < kBuffers; ++b) {
        inputs.emplace_back(kCount, rank + step + 100 * static_cast<int32_t>(b));
        const auto options = On(nullptr, streams[b]);
        ASSERT_OK(dtrain_allreduce_async(inputs[b].data(), outputs[b], kCount, DTRAIN_INT32,
                                         DTRAIN_SUM, &options, &handles[b]));
      }
      for (size_t b = 0; b < kBuffers; ++b) {
        ASSERT_OK(dtrain_wait(handles[b]));
        Numbers all(kCount);
        driver.Get(all.data(), outputs[b], kCount * 4, streams[b]);
        ASSERT_EQ(all, Numbers(kCount, 1 + 2 * step + 200 * static_cast<int32_t>(b)));
      }
    }
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// R1: NCCL would run these into each other, and both would return.
TEST(NcclJudge, CollectivesOfOneSizeThatDifferAreAnErrorAndNotWrongData) {
  for (int difference = 0; difference < 4; ++difference) {
    RunJobOf(2, OnNcclOf("fake_nccl"), [difference](int rank) {
      ASSERT_OK(dtrain_init(nullptr));
      const Driver driver(rank);
      void* const memory = driver.Allocate(800);
      ASSERT_OK(dtrain_allreduce(memory, memory, 100, DTRAIN_INT32, DTRAIN_SUM));
      ASSERT_OK(dtrain_broadcast(memory, 100, DTRAIN_INT32, 0));
      dtrain_status status = DTRAIN_OK;
      const bool other = rank == 1;
      if (difference == 0 && other) {
        status = dtrain_broadcast(memory, 100, DTRAIN_INT32, 0);
      } else if (difference == 1) {
        status = dtrain_broadcast(memory, 100, DTRAIN_INT32, rank);
      } else {
        status = dtrain_allreduce(memory, memory, 100,
                                  difference == 2 && other ? DTRAIN_FLOAT32 : DTRAIN_INT32,
                                  difference == 3 && other ? DTRAIN_MAX : DTRAIN_SUM);
      }
      EXPECT_EQ(status, DTRAIN_ERROR_MISMATCH) << difference << ": " << dtrain_last_error();
      EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
    });
  }
}

// R1: by name, whatever the order, and although NCCL runs a group's members by their size.
TEST(NcclJudge, NamedCollectivesMeetByTheirNames) {
  RunJobOf(3, OnNcclOf("fake_nccl"), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    constexpr int kNames = 6;
    void* memory[kNames];
    for (void*& each : memory) each = driver.Allocate(4000);
    for (int step = 0; step < 10; ++step) {
      dtrain_handle handles[kNames];
      for (int i = 0; i < kNames; ++i) {
        const int which = (i + rank * 2 + step) % kNames;
        // Two of them have one size.
        const size_t count = which < 2 ? 1000 : static_cast<size_t>(which * 100);
        const Numbers mine(count, 10 * which + rank);
        driver.Put(memory[which], mine.data(), count * 4);
        const std::string name = "gradient" + std::to_string(which);
        const auto options = On(nullptr, nullptr, name.c_str());
        ASSERT_OK(dtrain_allreduce_async(memory[which], memory[which], count, DTRAIN_INT32,
                                         DTRAIN_SUM, &options, &handles[which]));
      }
      for (int which = 0; which < kNames; ++which) {
        ASSERT_OK(dtrain_wait(handles[which]));
        Numbers all(100);
        driver.Get(all.data(), memory[which], 400);
        ASSERT_EQ(all, Numbers(100, 30 * which + 3)) << which;
      }
    }
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// R3, T23
TEST(NcclJudge, ThreadsThatCallAtTheSameTimeDoNotMeetInNccl) {
  for (const char* version : {"fake_nccl_2.21.5", "fake_nccl"}) {
    RunJobOf(2, OnNcclOf(version), [](int rank) {
      ASSERT_OK(dtrain_init(nullptr));
      std::vector<std::thread> threads;
      for (int t = 0; t < 3; ++t) {
        threads.emplace_back([=] {
          // On one stream, they would wait for each other, in another order on every rank.
          const Driver driver(rank);
          const abi::CuStream stream = driver.NewStream();
          void* const memory = driver.Allocate(400);
          const std::string name = "of thread " + std::to_string(t);
          for (int i = 0; i < 40; ++i) {
            const Numbers mine(100, rank + t + i);
            driver.Put(memory, mine.data(), 400, stream);
            const auto options = On(nullptr, stream, name.c_str());
            dtrain_handle handle = 0;
            ASSERT_OK(dtrain_allreduce_async(memory, memory, 100, DTRAIN_INT32, DTRAIN_SUM,
                                             &options, &handle));
            ASSERT_OK(dtrain_wait(handle));
            Numbers all(100);
            driver.Get(all.data(), memory, 400, stream);
            ASSERT_EQ(all, Numbers(100, 1 + 2 * (t + i)));
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      ASSERT_OK(dtrain_finalize());
      ExpectNoOffence();
    });
  }
}

// R4: a first use blocks its thread until all ranks have come to it.
TEST(NcclJudge, ManyGroupsMayBeInUseAtTheSameTime) {
  for (const char* version : {"fake_nccl_2.21.5", "fake_nccl", "fake_nccl_2.30.7"}) {
    RunJobOf(4, OnNcclOf(version), [](int rank) {
      ASSERT_OK(dtrain_init(nullptr));
      const Driver driver(rank);
      constexpr int kGroups = 8;
      dtrain_group groups[kGroups] = {};
      void* memory[kGroups];
      // The whole job, halves and pairs.
      for (int g = 1; g < kGroups; ++g) {
        ASSERT_OK(dtrain_group_create(g % 3 == 0   ? 0
                                      : g % 3 == 1 ? rank / 2
                                                   : rank % 2,
                                      -rank, &groups[g]));
      }
      for (void*& each : memory) each = driver.Allocate(400);
      for (int step = 0; step < 6; ++step) {
        dtrain_handle handles[kGroups];
        for (int g = 0; g < kGroups; ++g) {
          const Numbers mine(100, rank + 10 * g);
          driver.Put(memory[g], mine.data(), 400);
          const auto options = On(groups[g]);
          if ((g + step) % 2 == 0) {
            ASSERT_OK(dtrain_allreduce_async(memory[g], memory[g], 100, DTRAIN_INT32, DTRAIN_MAX,
                                             &options, &handles[g]));
          } else {
            ASSERT_OK(
                dtrain_broadcast_async(memory[g], 100, DTRAIN_INT32, 0, &options, &handles[g]));
          }
        }
        // Rank 0 of each group is the highest of its ranks, except in the whole job.
        for (int g = 0; g < kGroups; ++g) {
          ASSERT_OK(dtrain_wait(handles[g]));
          const int highest = g % 3 == 0 ? 3 : g % 3 == 1 ? rank / 2 * 2 + 1 : rank % 2 + 2;
          const int result = g == 0 && step % 2 == 1 ? 0 : highest;
          Numbers all(100);
          driver.Get(all.data(), memory[g], 400);
          ASSERT_EQ(all, Numbers(100, result + 10 * g)) << g << " " << step;
        }
      }
      ASSERT_OK(dtrain_finalize());
      ExpectNoOffence();
    });
  }
}

// R4, T23: NCCL wants one order on all ranks, whatever the programs have.
TEST(NcclJudge, EachRankUsesItsGroupsInAnOrderOfItsOwn) {
  for (const char* version : {"fake_nccl_2.21.5", "fake_nccl", "fake_nccl_2.30.7"}) {
    RunJobOf(4, OnNcclOf(version), [](int rank) {
      ASSERT_OK(dtrain_init(nullptr));
      const Driver driver(rank);
      constexpr size_t kGroups = 5;
      dtrain_group groups[kGroups] = {};
      abi::CuStream streams[kGroups];
      void* memory[kGroups];
      std::vector<size_t> order(kGroups);
      std::iota(order.begin(), order.end(), 0);
      std::mt19937 own(static_cast<unsigned>(rank));
      for (size_t g = 0; g < kGroups; ++g) {
        if (g > 0) {
          const int color = g == 1 ? 0 : g == 2 ? rank / 2 : rank % 2;
          ASSERT_OK(dtrain_group_create(color, 0, &groups[g]));
        }
        // On one stream, they would wait for each other.
        streams[g] = driver.NewStream();
        memory[g] = driver.Allocate(400);
      }
      for (int step = 0; step < 20 && !testing::Test::HasFailure(); ++step) {
        dtrain_handle handles[kGroups];
        std::shuffle(order.begin(), order.end(), own);
        for (const size_t g : order) {
          const Numbers mine(100, 1);
          driver.Put(memory[g], mine.data(), 400, streams[g]);
          const auto options = On(groups[g], streams[g]);
          // Each kind connects the ranks at its first use, which blocks the thread that calls NCCL.
          ASSERT_OK(step % 2 == 0 ? dtrain_allreduce_async(memory[g], memory[g], 100, DTRAIN_INT32,
                                                           DTRAIN_SUM, &options, &handles[g])
                                  : dtrain_reduce_async(memory[g], memory[g], 100, DTRAIN_INT32,
                                                        DTRAIN_SUM, 0, &options, &handles[g]));
        }
        std::shuffle(order.begin(), order.end(), own);
        for (const size_t g : order) {
          ASSERT_OK(dtrain_wait(handles[g]));
          Numbers all(100);
          driver.Get(all.data(), memory[g], 400, streams[g]);
          if (step % 2 == 0 || dtrain_group_rank(groups[g]) == 0) {
            EXPECT_EQ(all, Numbers(100, dtrain_group_size(groups[g]))) << g << " " << step;
          }
        }
        // A blocking one, and the ends and beginnings of groups, have places in that order, too.
        if (step % 7 == 3) {
          ASSERT_OK(dtrain_allreduce_async(memory[1], memory[1], 1, DTRAIN_INT32, DTRAIN_MAX,
                                           nullptr, &handles[0]));
          EXPECT_EQ(SumOfOne(1), 4);
          ASSERT_OK(dtrain_group_free(groups[2]));
          ASSERT_OK(dtrain_group_create(rank / 2, 0, &groups[2]));
          ASSERT_OK(dtrain_wait(handles[0]));
        }
      }
      ASSERT_OK(dtrain_finalize());
      ExpectNoOffence();
    });
  }
}

// Rank 0 is in no hurry with the first one, of which rank 1 needs the result.
TEST(NcclJudge, ARankMayWaitInAGroupThatComesLaterOnAnother) {
  RunJobOf(2, OnNcclOf("fake_nccl"), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    dtrain_group one = nullptr, other = nullptr;
    ASSERT_OK(dtrain_group_create(0, 0, &one));
    ASSERT_OK(dtrain_group_create(0, 0, &other));
    for (int step = 0; step < 10; ++step) {
      void* memory[2];
      dtrain_handle handles[2];
      for (int i = 0; i < 2; ++i) {
        ASSERT_OK(dtrain_alloc_device(4, &memory[i]));
        const auto options = On((i == 0) == (rank == 0) ? one : other);
        ASSERT_OK(dtrain_allreduce_async(memory[i], memory[i], 1, DTRAIN_INT32, DTRAIN_SUM,
                                         &options, &handles[i]));
        if (rank == 1) {
          ASSERT_OK(dtrain_wait(handles[i]));
        }
      }
      if (rank == 0) {
        for (const dtrain_handle handle : handles) ASSERT_OK(dtrain_wait(handle));
      }
      for (void* const each : memory) ASSERT_OK(dtrain_free(each));
    }
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// As PyTorch's does where it is short: the memory is asked for while others wait to be launched.
TEST(NcclJudge, MemoryForUnequalRowsMayWaitForTheWholeGpu) {
  RunJobOf(2, OnNcclOf("fake_nccl"), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    dtrain_group groups[2] = {};
    abi::CuStream streams[2];
    void* memory[2];
    for (int i = 0; i < 2; ++i) {
      ASSERT_OK(dtrain_group_create(0, 0, &groups[i]));
      streams[i] = driver.NewStream();
      memory[i] = driver.Allocate(400);
    }
    struct Place {
      const Driver* driver;
      void* memory;
    } place{&driver, driver.Allocate(400)};
    const auto give = [](void* at, const uint64_t*) -> void* {
      const Place& all = *static_cast<Place*>(at);
      const Device::Scope scope(all.driver->device());
      EXPECT_EQ(OfFake<int()>("DTRAIN_CUDA_LIBRARY", "cuCtxSynchronize")(), 0);
      return all.memory;
    };
    for (int step = 0; step < 30 && !testing::Test::HasFailure(); ++step) {
      dtrain_handle handles[2];
      const int32_t mine = rank;
      for (int k = 0; k < 2; ++k) {
        const int i = (k + rank + step) % 2;
        const auto options = On(groups[i], streams[i]);
        driver.Put(memory[i], &mine, 4, streams[i]);
        ASSERT_OK(i == 0
                      ? dtrain_allreduce_async(memory[0], memory[0], 1, DTRAIN_INT32, DTRAIN_SUM,
                                               &options, &handles[0])
                      : dtrain_allgatherv_async(memory[1], static_cast<uint64_t>(rank + 1), 1,
                                                DTRAIN_INT32, give, &place, &options, &handles[1]));
      }
      for (const dtrain_handle handle : handles) ASSERT_OK(dtrain_wait(handle));
      int32_t first = -1;
      driver.Get(&first, place.memory, 4, streams[1]);
      EXPECT_EQ(first, 0);
    }
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// N15, N20: nothing but our own time limit and the other ranks tell of a rank that died in NCCL.
TEST(NcclJudge, ARankThatDiesEndsTheOthersWhateverNcclTellsThem) {
  for (const std::string& version : NcclVersions()) {
    for (const char* notices : {"0", "1"}) {
      const auto begin = std::chrono::steady_clock::now();
      RunJobOf(3, OnNcclOf(version, {{"FAKE_NCCL_PROXY_NOTICES", notices}}),
               [](int rank) {
                 ASSERT_OK(dtrain_init(nullptr));
                 const Driver driver(rank);
                 void* const memory = driver.Allocate(400);
                 ASSERT_OK(dtrain_allreduce(memory, memory, 100, DTRAIN_INT32, DTRAIN_SUM));
                 ASSERT_OK(dtrain_barrier());
                 if (rank == 1) _exit(7);
                 dtrain_status status = DTRAIN_OK;
                 for (int i = 0; i < 1000 && status == DTRAIN_OK; ++i) {
                   status = dtrain_allreduce(memory, memory, 100, DTRAIN_INT32, DTRAIN_SUM);
                 }
                 EXPECT_NE(status, DTRAIN_OK);
                 EXPECT_TRUE(Says("rank 1")) << dtrain_last_error();
                 EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
                 EXPECT_EQ(Seen("ended_inside") + Seen("after_end"), 0);
               },
               {{1, 7}});
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << version;
    }
  }
}

}  // namespace
}  // namespace dtrain::runtime
