// SPDX-License-Identifier: Apache-2.0
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/dtrain.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/component/runtime/ranks.h"

namespace dtrain::runtime {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

std::vector<int> AllZero(int n) { return std::vector<int>(static_cast<size_t>(n), 0); }

RanksOptions WithEnvironment(std::map<std::string, std::string> environment) {
  RanksOptions options;
  options.environment = std::move(environment);
  options.environment.emplace("DTRAIN_COLLECTIVE_TIMEOUT_SECONDS", "40");
  return options;
}

TEST(AsyncTest, EveryKindGivesItsResultAfterWait) {
  const auto ends = Ranks::Run(3, [](int rank) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
    const int64_t mine[3] = {rank, 10 + rank, 20 + rank};
    int64_t sum[3], largest[3] = {0, 0, 0}, gathered[9], scattered = 0, swapped[3], root[3] = {7};
    if (rank == 2) root[0] = 42;
    dtrain_handle handles[7];
    EXPECT_EQ(dtrain_allreduce_async(mine, sum, 3, DTRAIN_INT64, DTRAIN_SUM, nullptr, &handles[0]),
              DTRAIN_OK);
    EXPECT_EQ(dtrain_broadcast_async(root, 1, DTRAIN_INT64, 2, nullptr, &handles[1]), DTRAIN_OK);
    EXPECT_EQ(dtrain_allgather_async(mine, gathered, 3, DTRAIN_INT64, nullptr, &handles[2]),
              DTRAIN_OK);
    EXPECT_EQ(dtrain_reduce_scatter_async(mine, &scattered, 1, DTRAIN_INT64, DTRAIN_SUM, nullptr,
                                          &handles[3]),
              DTRAIN_OK);
    EXPECT_EQ(dtrain_alltoall_async(mine, swapped, 1, DTRAIN_INT64, nullptr, &handles[4]),
              DTRAIN_OK);
    EXPECT_EQ(
        dtrain_reduce_async(mine, largest, 3, DTRAIN_INT64, DTRAIN_MAX, 1, nullptr, &handles[5]),
        DTRAIN_OK);
    EXPECT_EQ(dtrain_barrier_async(nullptr, &handles[6]), DTRAIN_OK);
    for (const dtrain_handle handle : {6, 0, 3, 1, 5, 2, 4}) {
      EXPECT_EQ(dtrain_wait(handles[handle]), DTRAIN_OK) << dtrain_last_error();
    }
    EXPECT_THAT(sum, testing::ElementsAre(3, 33, 63));
    EXPECT_EQ(root[0], 42);
    EXPECT_THAT(gathered, testing::ElementsAre(0, 10, 20, 1, 11, 21, 2, 12, 22));
    EXPECT_EQ(scattered, 3 + 30 * rank);
    EXPECT_THAT(swapped, testing::ElementsAre(10 * rank, 10 * rank + 1, 10 * rank + 2));
    if (rank == 1) {
      EXPECT_THAT(largest, testing::ElementsAre(2, 12, 22));
    }
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  });
  EXPECT_EQ(ends, AllZero(3));
}

// Each rank dawdles at other places, so that what is ready differs from rank to rank.
void ManySmallAllreduces(int rank, unsigned seed, int rounds) {
  ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
  std::mt19937 same(seed), own(seed + 1 + static_cast<unsigned>(rank));
  for (int round = 0; round < rounds; ++round) {
    const size_t n = 1 + same() % 200;
    std::vector<std::vector<float>> floats(n);
    std::vector<std::vector<int32_t>> ints(n);
    std::vector<dtrain_handle> handles(n);
    for (size_t i = 0; i < n; ++i) {
      const size_t count = same() % 100 == 0 ? 200'000 : same() % 300;
      const bool is_float = same() % 2 != 0;
      const std::string name = "gradient." + std::to_string(i);
      dtrain_options options = DTRAIN_OPTIONS_INIT;
      options.name = name.c_str();
      if (is_float) {
        floats[i].assign(count, static_cast<float>(i % 7 + static_cast<size_t>(rank)));
        ASSERT_EQ(dtrain_allreduce_async(floats[i].data(), floats[i].data(), count, DTRAIN_FLOAT32,
                                         DTRAIN_SUM, &options, &handles[i]),
                  DTRAIN_OK);
      } else {
        ints[i].assign(count, static_cast<int32_t>(i) - rank);
        ASSERT_EQ(dtrain_allreduce_async(ints[i].data(), ints[i].data(), count, DTRAIN_INT32,
                                         DTRAIN_MIN, &options, &handles[i]),
                  DTRAIN_OK);
      }
      if (own() % 8 == 0) sched_yield();
      if (own() % 50 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 3000));
      if (own() % 100 == 0) {
        EXPECT_EQ(dtrain_wait(handles[i]), DTRAIN_OK);
        handles[i] = 0;
      }
    }
    for (const dtrain_handle handle : handles) {
      if (handle != 0) {
        ASSERT_EQ(dtrain_wait(handle), DTRAIN_OK) << dtrain_last_error();
      }
    }
    const auto ranks = static_cast<size_t>(dtrain_size());
    for (size_t i = 0; i < n; ++i) {
      const auto sum = static_cast<float>(ranks * (i % 7) + ranks * (ranks - 1) / 2);
      for (const float value : floats[i]) ASSERT_EQ(value, sum) << "operation " << i;
      const auto lowest = static_cast<int32_t>(i) - static_cast<int32_t>(ranks) + 1;
      for (const int32_t value : ints[i]) ASSERT_EQ(value, lowest) << "operation " << i;
    }
  }
  EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
}

struct Fusion {
  const char* name;
  const char* threshold;
  const char* cycle_ms;
};
class FusionTest : public testing::TestWithParam<Fusion> {};
INSTANTIATE_TEST_SUITE_P(Settings, FusionTest,
                         testing::Values(Fusion{"Default", "134217728", "1"},
                                         Fusion{"SmallThreshold", "2000", "1"},
                                         Fusion{"NoWaiting", "134217728", "0"},
                                         Fusion{"Off", "0", "1"}, Fusion{"Slow", "4000000", "20"}),
                         [](const auto& info) { return info.param.name; });

TEST_P(FusionTest, ManySmallAllreducesAreRightWhateverTheTiming) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const auto ends = Ranks::Run(
      3, [&](int rank) { ManySmallAllreduces(rank, seed, 4); },
      WithEnvironment({{"DTRAIN_FUSION_THRESHOLD", GetParam().threshold},
                       {"DTRAIN_CYCLE_TIME", GetParam().cycle_ms}}));
  EXPECT_EQ(ends, AllZero(3));
}

TEST(AsyncTest, RankZeroDecidesOnFusionForAll) {
  const auto ends = Ranks::Run(2, [](int rank) {
    setenv("DTRAIN_FUSION_THRESHOLD", rank == 0 ? "0" : "1000000", 1);
    ManySmallAllreduces(rank, 5, 1);
  });
  EXPECT_EQ(ends, AllZero(2));
}

// Nothing is fused there, and empty ones are no exception.
TEST(AsyncTest, ManyEmptyOnesOfARankAlone) {
  const auto ends = Ranks::Run(1, [](int) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
    int32_t value = 7;
    std::vector<dtrain_handle> handles(500);
    for (dtrain_handle& handle : handles) {
      ASSERT_EQ(
          dtrain_allreduce_async(&value, &value, 0, DTRAIN_INT32, DTRAIN_SUM, nullptr, &handle),
          DTRAIN_OK)
          << dtrain_last_error();
    }
    for (const dtrain_handle handle : handles) EXPECT_EQ(dtrain_wait(handle), DTRAIN_OK);
    EXPECT_EQ(value, 7);
  });
  EXPECT_EQ(ends, AllZero(1));
}

TEST(AsyncTest, WhatIsFusedDoesNotChangeTheBits) {
  RanksOptions options = WithEnvironment({{"DTRAIN_ADDRESS", "127.0.0.1"}});
  for (const char* mapping : {"(vector,(0,1,4))", "(vector,(0,2,1))"}) {
    options.mapping = mapping;
    const auto ends = Ranks::Run(
        4,
        [](int rank) {
          ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
          std::vector<std::vector<float>> fused(60), single;
          for (size_t i = 0; i < fused.size(); ++i) {
            fused[i].resize(1 + i * i * 7);
            for (size_t j = 0; j < fused[i].size(); ++j) {
              fused[i][j] = 1.0f / static_cast<float>(3 + i + j * 5 + static_cast<size_t>(rank));
            }
          }
          single = fused;
          std::vector<dtrain_handle> handles(fused.size());
          for (size_t i = 0; i < fused.size(); ++i) {
            float* data = fused[i].data();
            ASSERT_EQ(dtrain_allreduce_async(data, data, fused[i].size(), DTRAIN_FLOAT32,
                                             DTRAIN_AVG, nullptr, &handles[i]),
                      DTRAIN_OK);
          }
          for (const dtrain_handle handle : handles) ASSERT_EQ(dtrain_wait(handle), DTRAIN_OK);
          for (std::vector<float>& data : single) {
            ASSERT_EQ(
                dtrain_allreduce(data.data(), data.data(), data.size(), DTRAIN_FLOAT32, DTRAIN_AVG),
                DTRAIN_OK);
          }
          EXPECT_EQ(fused, single);
          EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
        },
        options);
    EXPECT_EQ(ends, AllZero(4)) << mapping;
  }
}

TEST(AsyncTest, BlockingCallsComeAfterTheAsynchronousOnesBeforeThem) {
  const auto ends = Ranks::Run(
      3,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        for (int round = 0; round < 20; ++round) {
          int32_t value = 1;
          dtrain_handle handle = 0;
          ASSERT_EQ(
              dtrain_allreduce_async(&value, &value, 1, DTRAIN_INT32, DTRAIN_SUM, nullptr, &handle),
              DTRAIN_OK);
          if (rank == round % 3) {
            ASSERT_EQ(dtrain_wait(handle), DTRAIN_OK);
          }
          // Waits for the one before, and so may use its result.
          ASSERT_EQ(dtrain_allreduce(&value, &value, 1, DTRAIN_INT32, DTRAIN_SUM), DTRAIN_OK)
              << dtrain_last_error();
          EXPECT_EQ(value, 9);
          if (rank != round % 3) {
            ASSERT_EQ(dtrain_wait(handle), DTRAIN_OK);
          }
        }
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      WithEnvironment({{"DTRAIN_CYCLE_TIME", "5"}}));
  EXPECT_EQ(ends, AllZero(3));
}

TEST(AsyncTest, TestTellsWhetherItIsDoneAndThenForgetsTheHandle) {
  const auto ends = Ranks::Run(
      2,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        dtrain_handle handle = 0;
        int done = 7;
        if (rank == 0) {
          ASSERT_EQ(dtrain_barrier_async(nullptr, &handle), DTRAIN_OK);
          EXPECT_EQ(dtrain_test(handle, &done), DTRAIN_OK);
          EXPECT_EQ(done, 0) << "rank 1 has not begun";
          send(atoi(getenv("TEST_SOCKET_0")), "x", 1, MSG_NOSIGNAL);
        } else {
          char byte = 0;
          EXPECT_EQ(recv(atoi(getenv("TEST_SOCKET_1")), &byte, 1, 0), 1);
          ASSERT_EQ(dtrain_barrier_async(nullptr, &handle), DTRAIN_OK);
        }
        for (done = 0; done == 0;) ASSERT_EQ(dtrain_test(handle, &done), DTRAIN_OK);
        EXPECT_EQ(dtrain_test(handle, &done), DTRAIN_ERROR_INVALID_ARGUMENT);
        EXPECT_EQ(done, 0);
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      [] {
        int pair[2];
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        return WithEnvironment({{"TEST_SOCKET_0", std::to_string(pair[0])},
                                {"TEST_SOCKET_1", std::to_string(pair[1])}});
      }());
  EXPECT_EQ(ends, AllZero(2));
}

TEST(AsyncTest, WrongHandlesAndOptionsAreRefusedAndHarmNothing) {
  const auto ends = Ranks::Run(2, [](int rank) {
    int32_t value = 1;
    dtrain_handle handle = 9;
    EXPECT_EQ(dtrain_barrier_async(nullptr, &handle), DTRAIN_ERROR_STATE);
    EXPECT_EQ(handle, 0u);
    EXPECT_EQ(dtrain_wait(1), DTRAIN_ERROR_STATE);
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    const auto bad = DTRAIN_ERROR_INVALID_ARGUMENT;
    if (rank == 0) {
      int done = 3;
      EXPECT_EQ(dtrain_wait(0), bad);
      EXPECT_EQ(dtrain_wait(12345), bad);
      EXPECT_THAT(dtrain_last_error(), HasSubstr("no handle 12345"));
      EXPECT_EQ(dtrain_test(1, nullptr), bad);
      EXPECT_EQ(dtrain_test(1, &done), bad);
      EXPECT_EQ(done, 0);
      EXPECT_EQ(dtrain_barrier_async(nullptr, nullptr), bad);
      dtrain_options options = DTRAIN_OPTIONS_INIT;
      options.struct_size = 3;
      EXPECT_EQ(dtrain_barrier_async(&options, &handle), bad);
      options = DTRAIN_OPTIONS_INIT;
      options.flags = 2;
      EXPECT_EQ(dtrain_barrier_async(&options, &handle), DTRAIN_ERROR_UNSUPPORTED);
      options = DTRAIN_OPTIONS_INIT;
      options.group = reinterpret_cast<dtrain_group>(uintptr_t{77});
      EXPECT_EQ(dtrain_barrier_async(&options, &handle), bad);
      EXPECT_EQ(
          dtrain_allreduce_async(nullptr, &value, 1, DTRAIN_INT32, DTRAIN_SUM, nullptr, &handle),
          bad);
      EXPECT_EQ(handle, 0u);
    }
    ASSERT_EQ(dtrain_allreduce_async(&value, &value, 1, DTRAIN_INT32, DTRAIN_SUM, nullptr, &handle),
              DTRAIN_OK);
    EXPECT_EQ(dtrain_wait(handle), DTRAIN_OK);
    EXPECT_EQ(dtrain_wait(handle), bad) << "waited for before";
    EXPECT_EQ(value, 2);
    // One that nobody waits for is done all the same before the job is left.
    EXPECT_EQ(dtrain_allreduce_async(&value, &value, 1, DTRAIN_INT32, DTRAIN_SUM, nullptr, &handle),
              DTRAIN_OK);
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
    EXPECT_EQ(value, 4);
    EXPECT_EQ(dtrain_wait(handle), DTRAIN_ERROR_STATE);
  });
  EXPECT_EQ(ends, AllZero(2));
}

TEST(AsyncTest, ThreadTakesNoSignals) {
  const auto ends = Ranks::Run(1, [](int) {
    static pthread_t main_thread;
    main_thread = pthread_self();
    static volatile sig_atomic_t elsewhere = 0;
    signal(SIGUSR1, [](int) {
      elsewhere = elsewhere + (pthread_equal(pthread_self(), main_thread) ? 0 : 1);
    });
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    dtrain_handle handle = 0;
    ASSERT_EQ(dtrain_barrier_async(nullptr, &handle), DTRAIN_OK);
    for (int i = 0; i < 100; ++i) kill(getpid(), SIGUSR1);
    EXPECT_EQ(dtrain_wait(handle), DTRAIN_OK);
    EXPECT_EQ(elsewhere, 0);
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  });
  EXPECT_EQ(ends, AllZero(1));
}

// M5: the count that one rank has differently is told by rank and name, and harms nothing else.
TEST(AsyncTest, RanksThatDisagreeAreNamedAndTheJobGoesOn) {
  for (const char* threshold : {"1000000", "0"}) {
    const auto ends = Ranks::Run(
        3,
        [](int rank) {
          ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
          for (int round = 0; round < 2; ++round) {
            std::vector<float> data(300, 1.0f);
            dtrain_handle handles[3];
            const size_t counts[3] = {20, rank == 1 ? size_t{30} : size_t{10}, 40};
            for (int i = 0; i < 3; ++i) {
              float* at = data.data() + 100 * i;
              ASSERT_EQ(dtrain_allreduce_async(at, at, counts[i], DTRAIN_FLOAT32, DTRAIN_SUM,
                                               nullptr, &handles[i]),
                        DTRAIN_OK);
            }
            EXPECT_EQ(dtrain_wait(handles[0]), DTRAIN_OK);
            EXPECT_EQ(dtrain_wait(handles[1]), DTRAIN_ERROR_MISMATCH);
            EXPECT_THAT(dtrain_last_error(),
                        AllOf(HasSubstr("ranks 0, 2 for allreduce sum of 10 float32"),
                              HasSubstr("rank 1 for allreduce sum of 30 float32")));
            EXPECT_EQ(dtrain_wait(handles[2]), DTRAIN_OK);
            EXPECT_EQ(data[0], 3.0f);
            EXPECT_EQ(data[100], 1.0f) << "what is refused is not touched";
            EXPECT_EQ(data[239], 3.0f);
            EXPECT_EQ(dtrain_barrier(), DTRAIN_OK);
          }
          EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
        },
        WithEnvironment({{"DTRAIN_CYCLE_TIME", "1000"}, {"DTRAIN_FUSION_THRESHOLD", threshold}}));
    EXPECT_EQ(ends, AllZero(3));
  }
}

TEST(AsyncTest, BlockingHereAndAsynchronousThereIsAnErrorNotAHang) {
  const auto ends = Ranks::Run(
      2,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        float value = 1;
        dtrain_status status = DTRAIN_OK;
        if (rank == 0) {
          status = dtrain_allreduce(&value, &value, 1, DTRAIN_FLOAT32, DTRAIN_SUM);
        } else {
          dtrain_handle handle = 0;
          ASSERT_EQ(dtrain_allreduce_async(&value, &value, 1, DTRAIN_FLOAT32, DTRAIN_SUM, nullptr,
                                           &handle),
                    DTRAIN_OK);
          status = dtrain_wait(handle);
        }
        EXPECT_EQ(status, DTRAIN_ERROR_MISMATCH);
        EXPECT_THAT(dtrain_last_error(), HasSubstr("is how asynchronous collectives"));
      },
      WithEnvironment({}));
  EXPECT_EQ(ends, AllZero(2));
}

dtrain_options Named(const char* name) {
  dtrain_options options = DTRAIN_OPTIONS_INIT;
  options.name = name;
  return options;
}

// What several ranks make in different orders finds its own, whatever its kind: equal sizes, so
// that nothing but the name tells them apart. More of them than one offer holds.
void MakeInAnyOrder(int rank, unsigned seed, size_t n) {
  ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
  const int ranks = dtrain_size();
  std::mt19937 own(seed + static_cast<unsigned>(rank));
  for (int round = 0; round < 3; ++round) {
    std::vector<std::array<int64_t, 8>> data(n);
    std::vector<int64_t> gives(n);
    std::vector<dtrain_handle> handles(n);
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), own);
    for (const size_t i : order) {
      data[i].fill(static_cast<int64_t>(1000 * i) + rank);
      gives[i] = data[i][0];
      const std::string name = "tensor." + std::to_string(i);
      const dtrain_options options = Named(name.c_str());
      int64_t* at = data[i].data();
      const dtrain_status status =
          i % 5 == 3 ? dtrain_broadcast_async(at, 1, DTRAIN_INT64, 1, &options, &handles[i])
          : i % 5 == 4
              ? dtrain_allgather_async(&gives[i], at, 1, DTRAIN_INT64, &options, &handles[i])
              : dtrain_allreduce_async(at, at, 1, DTRAIN_INT64, DTRAIN_SUM, &options, &handles[i]);
      ASSERT_EQ(status, DTRAIN_OK) << dtrain_last_error();
      if (own() % 8 == 0) sched_yield();
    }
    for (const dtrain_handle handle : handles) {
      if (handle != 0) {
        ASSERT_EQ(dtrain_wait(handle), DTRAIN_OK) << dtrain_last_error();
      }
    }
    for (size_t i = 0; i < n; ++i) {
      const auto base = static_cast<int64_t>(1000 * i);
      if (i % 5 == 4) {
        for (int r = 0; r < ranks; ++r) EXPECT_EQ(data[i][static_cast<size_t>(r)], base + r);
      } else {
        EXPECT_EQ(data[i][0], i % 5 == 3 ? base + 1 : ranks * base + ranks * (ranks - 1) / 2);
      }
    }
  }
  EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
}

TEST_P(FusionTest, NamesMeetInWhateverOrderTheyAreMade) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  RanksOptions options = WithEnvironment({{"DTRAIN_FUSION_THRESHOLD", GetParam().threshold},
                                          {"DTRAIN_CYCLE_TIME", GetParam().cycle_ms},
                                          {"DTRAIN_ADDRESS", "127.0.0.1"}});
  for (const char* mapping : {"(vector,(0,1,4))", "(vector,(0,2,2))"}) {
    options.mapping = mapping;
    EXPECT_EQ(Ranks::Run(
                  4, [&](int rank) { MakeInAnyOrder(rank, seed, 200); }, options),
              AllZero(4));
  }
}

// None of these is waited for before all are made, so that the lists are long.
TEST(AsyncTest, LongListsInOppositeOrdersMeet) {
  const auto ends = Ranks::Run(
      2,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        constexpr size_t kMany = 700;
        std::vector<int64_t> data(kMany);
        std::vector<dtrain_handle> handles(kMany);
        for (size_t n = 0; n < kMany; ++n) {
          const size_t i = rank == 0 ? n : kMany - 1 - n;
          data[i] = static_cast<int64_t>(i);
          const std::string name = std::to_string(i);
          const dtrain_options options = Named(name.c_str());
          ASSERT_EQ(dtrain_allreduce_async(&data[i], &data[i], 1, DTRAIN_INT64, DTRAIN_SUM,
                                           &options, &handles[i]),
                    DTRAIN_OK);
        }
        for (size_t i = 0; i < kMany; ++i) {
          ASSERT_EQ(dtrain_wait(handles[i]), DTRAIN_OK) << dtrain_last_error();
          EXPECT_EQ(data[i], 2 * static_cast<int64_t>(i));
        }
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      WithEnvironment({}));
  EXPECT_EQ(ends, AllZero(2));
}

// Ranks that wait for nothing but different things cannot get further: told soon, and no reason
// to end the job.
// Arrays of the same length, which only their callers know to be different.
TEST(AsyncTest, ShapesThatDifferAreAMismatch) {
  const auto ends = Ranks::Run(
      3,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        for (const char* ours : {"(2, 3)", "(3, 2)"}) {
          float data[6] = {1, 1, 1, 1, 1, 1};
          dtrain_options options = Named("weight");
          options.shape = rank == 1 ? "(3, 2)" : ours;
          dtrain_handle handle = 0;
          ASSERT_EQ(
              dtrain_allreduce_async(data, data, 6, DTRAIN_FLOAT32, DTRAIN_SUM, &options, &handle),
              DTRAIN_OK);
          if (std::strcmp(ours, "(3, 2)") == 0) {
            EXPECT_EQ(dtrain_wait(handle), DTRAIN_OK);
            EXPECT_EQ(data[5], 3.0f);
            continue;
          }
          EXPECT_EQ(dtrain_wait(handle), DTRAIN_ERROR_MISMATCH);
          EXPECT_THAT(dtrain_last_error(),
                      AllOf(HasSubstr("ranks 0, 2 for allreduce sum of 6 float32 of shape (2, 3) "),
                            HasSubstr("rank 1 for allreduce sum of 6 float32 of shape (3, 2) ")));
          EXPECT_EQ(data[5], 1.0f) << "what is refused is not touched";
        }
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      WithEnvironment({}));
  EXPECT_EQ(ends, AllZero(3));
}

TEST(AsyncTest, DifferentNamesThatAreWaitedForAreAMismatchSoon) {
  const auto start = std::chrono::steady_clock::now();
  const auto ends = Ranks::Run(
      3,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        // Both at once: it takes five seconds (kDoubt).
        float data[2][4] = {};
        dtrain_handle handles[2] = {};
        dtrain_options options = Named(rank == 1 ? "bias" : "weight");
        ASSERT_EQ(dtrain_broadcast_async(data[0], 4, DTRAIN_FLOAT32, 0, &options, &handles[0]),
                  DTRAIN_OK);
        options = Named(rank == 1 ? "other bias" : "other weight");
        ASSERT_EQ(dtrain_allreduce_async(data[1], data[1], 4, DTRAIN_FLOAT32, DTRAIN_SUM, &options,
                                         &handles[1]),
                  DTRAIN_OK);
        for (const dtrain_handle handle : handles) {
          EXPECT_EQ(dtrain_wait(handle), DTRAIN_ERROR_MISMATCH);
          EXPECT_THAT(dtrain_last_error(),
                      AllOf(HasSubstr("ranks 0, 2 for "), HasSubstr("\"weight\"; rank 1 for "),
                            HasSubstr("\"bias\"")));
        }
        EXPECT_EQ(dtrain_barrier(), DTRAIN_OK) << dtrain_last_error();
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      WithEnvironment({{"DTRAIN_COLLECTIVE_TIMEOUT_SECONDS", "600"}}));
  EXPECT_EQ(ends, AllZero(3));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60))
      << "not by a timeout";
}

TEST(AsyncTest, WhatNobodyWaitsForIsGathered) {
  const std::chrono::milliseconds cycle(1000);
  const auto ends = Ranks::Run(
      2,
      [cycle](int) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        int32_t values[4] = {1, 1, 1, 1};
        dtrain_handle handles[4];
        for (int round = 0; round < 2; ++round) {
          const auto begin = std::chrono::steady_clock::now();
          for (int i = 0; i < 4; ++i) {
            const dtrain_status begun =
                i % 2 == 0
                    ? dtrain_broadcast_async(&values[i], 1, DTRAIN_INT32, 0, nullptr, &handles[i])
                    : dtrain_allreduce_async(&values[i], &values[i], 1, DTRAIN_INT32, DTRAIN_SUM,
                                             nullptr, &handles[i]);
            ASSERT_EQ(begun, DTRAIN_OK);
          }
          int done[4] = {};
          for (size_t i = 0; i < 4; ++i) {
            EXPECT_EQ(dtrain_test(handles[i], &done[i]), DTRAIN_OK);
            // On a busy machine it may be over already.
            if (std::chrono::steady_clock::now() - begin < cycle) {
              EXPECT_EQ(done[i], 0);
            }
          }
          for (size_t i = 0; i < 4; ++i) {
            if (round == 0 && done[i] == 0) {
              EXPECT_EQ(dtrain_wait(handles[i]), DTRAIN_OK);
              continue;
            }
            while (done[i] == 0) ASSERT_EQ(dtrain_test(handles[i], &done[i]), DTRAIN_OK);
          }
        }
        EXPECT_EQ(values[3], 4);
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      WithEnvironment({{"DTRAIN_CYCLE_TIME", std::to_string(cycle.count())}}));
  EXPECT_EQ(ends, AllZero(2));
}

// Who only looks from time to time may still make what the others wait for; but not for ever.
TEST(AsyncTest, WhatFindsNoPartnerTimesOutWithTheNamesOfAll) {
  const auto ends = Ranks::Run(
      2,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        float data[4] = {};
        const dtrain_options options = Named(rank == 0 ? "mine" : "yours");
        dtrain_handle handle = 0;
        ASSERT_EQ(
            dtrain_allreduce_async(data, data, 4, DTRAIN_FLOAT32, DTRAIN_SUM, &options, &handle),
            DTRAIN_OK);
        dtrain_status status = DTRAIN_OK;
        for (int done = 0; done == 0;) status = dtrain_test(handle, &done);
        EXPECT_EQ(status, DTRAIN_ERROR_TIMEOUT) << dtrain_last_error();
        EXPECT_THAT(dtrain_last_error(),
                    AllOf(HasSubstr("rank 0 for allreduce sum of 4 float32 \"mine\""),
                          HasSubstr("rank 1 for allreduce sum of 4 float32 \"yours\"")));
        EXPECT_EQ(dtrain_barrier(), DTRAIN_OK) << "the job goes on";
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      WithEnvironment({{"DTRAIN_COLLECTIVE_TIMEOUT_SECONDS", "2"}}));
  EXPECT_EQ(ends, AllZero(2));
}

TEST(AsyncTest, ANameThatIsInFlightIsRefusedOnThatRankAlone) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const auto ends = Ranks::Run(
      2,
      [&](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        int32_t one = 1, two = 1;
        const dtrain_options options = Named("a");
        dtrain_handle handle = 0, other = 0;
        char byte = 0;
        if (rank == 1) {
          ASSERT_EQ(recv(pair[1], &byte, 1, 0), 1) << "so that it cannot be done";
        }
        ASSERT_EQ(
            dtrain_allreduce_async(&one, &one, 1, DTRAIN_INT32, DTRAIN_SUM, &options, &handle),
            DTRAIN_OK);
        if (rank == 0) {
          EXPECT_EQ(
              dtrain_allreduce_async(&two, &two, 1, DTRAIN_INT32, DTRAIN_SUM, &options, &other),
              DTRAIN_ERROR_INVALID_ARGUMENT);
          EXPECT_THAT(dtrain_last_error(), HasSubstr("\"a\" is not done yet"));
          EXPECT_EQ(other, 0u);
          ASSERT_EQ(send(pair[0], "x", 1, MSG_NOSIGNAL), 1);
        }
        EXPECT_EQ(dtrain_wait(handle), DTRAIN_OK);
        EXPECT_EQ(one, 2);
        ASSERT_EQ(dtrain_allreduce_async(&two, &two, 1, DTRAIN_INT32, DTRAIN_SUM, &options, &other),
                  DTRAIN_OK)
            << "again, once it is done";
        EXPECT_EQ(dtrain_wait(other), DTRAIN_OK);
        EXPECT_EQ(two, 2);
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      WithEnvironment({}));
  EXPECT_EQ(ends, AllZero(2));
  close(pair[0]);
  close(pair[1]);
}

// Rank 1's thread may make its second one only when rank 0's second thread has its result; the
// first one of both is waited for meanwhile.
TEST(AsyncTest, TwoThreadsWaitForDifferentHandlesAndTestNeverBlocks) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const auto ends = Ranks::Run(
      2,
      [&](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        int32_t early = 1, late = 1, looked_at = 1;
        const dtrain_options first = Named("early"), second = Named("late"), third = Named("look");
        dtrain_handle handles[3] = {};
        const auto reduce = [](int32_t& value, const dtrain_options& options, dtrain_handle& h) {
          return dtrain_allreduce_async(&value, &value, 1, DTRAIN_INT32, DTRAIN_SUM, &options, &h);
        };
        char byte = 0;
        if (rank == 0) {
          ASSERT_EQ(reduce(late, second, handles[1]), DTRAIN_OK);
          std::thread waits([&] { EXPECT_EQ(dtrain_wait(handles[1]), DTRAIN_OK); });
          // Beside the one that waits: another collective, to its end, in both ways of asking.
          ASSERT_EQ(reduce(early, first, handles[0]), DTRAIN_OK);
          EXPECT_EQ(dtrain_wait(handles[0]), DTRAIN_OK) << dtrain_last_error();
          EXPECT_EQ(early, 2);
          ASSERT_EQ(reduce(looked_at, third, handles[2]), DTRAIN_OK);
          for (int done = 0; done == 0;) ASSERT_EQ(dtrain_test(handles[2], &done), DTRAIN_OK);
          EXPECT_EQ(looked_at, 2);
          ASSERT_EQ(send(pair[0], "x", 1, MSG_NOSIGNAL), 1);
          waits.join();
        } else {
          ASSERT_EQ(reduce(early, first, handles[0]), DTRAIN_OK);
          ASSERT_EQ(reduce(looked_at, third, handles[2]), DTRAIN_OK);
          EXPECT_EQ(dtrain_wait(handles[2]), DTRAIN_OK);
          ASSERT_EQ(recv(pair[1], &byte, 1, 0), 1);
          ASSERT_EQ(reduce(late, second, handles[1]), DTRAIN_OK);
          EXPECT_EQ(dtrain_wait(handles[1]), DTRAIN_OK);
          EXPECT_EQ(dtrain_wait(handles[0]), DTRAIN_OK);
        }
        EXPECT_EQ(late, 2);
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      WithEnvironment({}));
  EXPECT_EQ(ends, AllZero(2));
  close(pair[0]);
  close(pair[1]);
}

// Each thread makes and awaits its own, in its own order.
TEST(AsyncTest, SeveralThreadsAtOnce) {
  const auto ends = Ranks::Run(
      3,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; ++t) {
          threads.emplace_back([t, rank] {
            for (int i = 0; i < 50; ++i) {
              int64_t value = 100 * t + rank;
              const std::string name = std::to_string(t) + "." + std::to_string(i);
              const dtrain_options options = Named(name.c_str());
              dtrain_handle handle = 0;
              ASSERT_EQ(dtrain_allreduce_async(&value, &value, 1, DTRAIN_INT64, DTRAIN_SUM,
                                               &options, &handle),
                        DTRAIN_OK)
                  << dtrain_last_error();
              ASSERT_EQ(dtrain_wait(handle), DTRAIN_OK) << dtrain_last_error();
              ASSERT_EQ(value, 300 * t + 3);
            }
          });
        }
        for (std::thread& thread : threads) thread.join();
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
      },
      WithEnvironment({}));
  EXPECT_EQ(ends, AllZero(3));
}

// M2
TEST(AsyncTest, RankThatIsKilledFailsWhatIsInFlightOnTheOthers) {
  const auto ends = Ranks::Run(
      3,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        ASSERT_EQ(dtrain_barrier(), DTRAIN_OK);
        if (rank == 1) raise(SIGKILL);
        std::vector<float> data(64, 1.0f);
        std::vector<dtrain_handle> handles(10);
        for (dtrain_handle& handle : handles) {
          const dtrain_status status = dtrain_allreduce_async(
              data.data(), data.data(), data.size(), DTRAIN_FLOAT32, DTRAIN_SUM, nullptr, &handle);
          EXPECT_THAT(status, AnyOf(DTRAIN_OK, DTRAIN_ERROR_NETWORK));
        }
        for (const dtrain_handle handle : handles) {
          if (handle != 0) {
            EXPECT_EQ(dtrain_wait(handle), DTRAIN_ERROR_NETWORK);
          }
        }
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
        EXPECT_EQ(dtrain_init(nullptr), DTRAIN_ERROR_STATE) << "not after a failure";
      },
      Ending({{1, -SIGKILL}}, WithEnvironment({{"DTRAIN_COLLECTIVE_TIMEOUT_SECONDS", "600"}})));
  EXPECT_EQ(ends, (std::vector<int>{0, -SIGKILL, 0}));
}

}  // namespace
}  // namespace dtrain::runtime
