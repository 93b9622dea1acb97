// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "dtrain/dtrain.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/component/runtime/ranks.h"

namespace dtrain::runtime {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;

std::vector<int> AllZero(int n) { return std::vector<int>(static_cast<size_t>(n), 0); }

RanksOptions Patient() {
  RanksOptions options;
  options.environment["DTRAIN_COLLECTIVE_TIMEOUT_SECONDS"] = "40";
  return options;
}

// One step of training, in which the ranks from `first` on take part: gradients of several sizes
// and types, also such that travel alone.
void Step(int first, int n) {
  std::vector<std::vector<float>> sums;
  for (const size_t count : {3, 0, 1000, 200'000}) sums.emplace_back(count, 1.0F);
  std::vector<double> average(5, 1.0);
  std::vector<dtrain_handle> handles(sums.size() + 1);
  for (size_t i = 0; i < sums.size(); ++i) {
    ASSERT_EQ(dtrain_allreduce_async(sums[i].data(), sums[i].data(), sums[i].size(), DTRAIN_FLOAT32,
                                     DTRAIN_SUM, nullptr, &handles[i]),
              DTRAIN_OK)
        << dtrain_last_error();
  }
  ASSERT_EQ(dtrain_allreduce_async(average.data(), average.data(), average.size(), DTRAIN_FLOAT64,
                                   DTRAIN_AVG, nullptr, &handles.back()),
            DTRAIN_OK);
  for (const dtrain_handle handle : handles) {
    ASSERT_EQ(dtrain_wait(handle), DTRAIN_OK) << dtrain_last_error();
  }
  for (const auto& sum : sums) EXPECT_THAT(sum, Each(static_cast<float>(n - first)));
  EXPECT_THAT(average, Each(static_cast<double>(n - first) / n));
}

// Rank r takes r steps.
void Uneven(int rank, int n) {
  ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int step = 0; step < rank; ++step) Step(step + 1, n);
    int last = -2;
    ASSERT_EQ(dtrain_join(&last), DTRAIN_OK) << dtrain_last_error();
    EXPECT_EQ(last, n - 1);
    // The job goes on as if nothing had been.
    int32_t one = 1;
    EXPECT_EQ(dtrain_allreduce(&one, &one, 1, DTRAIN_INT32, DTRAIN_SUM), DTRAIN_OK);
    EXPECT_EQ(one, n);
    Step(0, n);
  }
  EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
}

TEST(JoinTest, ARankWithoutDataContributesZeros) {
  for (const int n : {1, 2, 5}) {
    EXPECT_EQ(Ranks::Run(
                  n, [n](int rank) { Uneven(rank, n); }, Patient()),
              AllZero(n));
  }
}

TEST(JoinTest, AlsoBetweenNodes) {
  RanksOptions options = Patient();
  options.mapping = "(vector,(0,2,2))";
  EXPECT_EQ(Ranks::Run(
                4, [](int rank) { Uneven(rank, 4); }, options),
            AllZero(4));
}

// What goes wrong while rank 0 is in dtrain_join and the others call something else.
void Refused(int n, dtrain_status (*call)(), const char* text) {
  const auto body = [=](int rank) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
    EXPECT_EQ(rank == 0 ? dtrain_join(nullptr) : call(), DTRAIN_ERROR_MISMATCH);
    EXPECT_THAT(dtrain_last_error(), HasSubstr(text));
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  };
  EXPECT_EQ(Ranks::Run(n, body, Patient()), AllZero(n));
}

TEST(JoinTest, AnotherCollectiveMeanwhileFailsOnBothSides) {
  const auto blocking = [] {
    int32_t one = 1;
    return dtrain_allreduce(&one, &one, 1, DTRAIN_INT32, DTRAIN_SUM);
  };
  Refused(2, blocking,
          "is how asynchronous collectives, dtrain_group_create and dtrain_join begin");
}

TEST(JoinTest, AGroupIsRefusedMeanwhileAndCanBeMadeAfterwards) {
  const auto body = [](int rank) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
    dtrain_group group = nullptr;
    if (rank == 1) {
      EXPECT_EQ(dtrain_group_create(0, 0, &group), DTRAIN_ERROR_MISMATCH);
      EXPECT_THAT(dtrain_last_error(),
                  AllOf(HasSubstr("rank 0 for dtrain_join"), HasSubstr("\"dtrain_group_create\"")));
    }
    EXPECT_EQ(dtrain_join(nullptr), DTRAIN_OK) << dtrain_last_error();
    EXPECT_EQ(dtrain_group_create(0, 0, &group), DTRAIN_OK) << dtrain_last_error();
    EXPECT_EQ(dtrain_group_size(group), 2);
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  };
  EXPECT_EQ(Ranks::Run(2, body, Patient()), AllZero(2));
}

TEST(JoinTest, TheEndOfAnotherRankIsNoticed) {
  const auto ends = Ranks::Run(
      3,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
        if (rank == 2) _exit(7);
        EXPECT_THAT(dtrain_join(nullptr), AnyOf(DTRAIN_ERROR_NETWORK, DTRAIN_ERROR_LAUNCHER));
        EXPECT_THAT(dtrain_last_error(), AllOf(HasSubstr("dtrain_join"), HasSubstr("rank 2")));
        EXPECT_NE(dtrain_join(nullptr), DTRAIN_OK);
        dtrain_finalize();
      },
      Ending({{2, 7}}, Patient()));
  EXPECT_EQ(ends, (std::vector<int>{0, 0, 7}));
}

// Others are told, the rank that has joined stays so, and the job goes on.
TEST(JoinTest, WhatItCannotGoAlongWithHarmsNothing) {
  for (const char* threshold : {"1000000", "0"}) {
    RanksOptions options = Patient();
    options.environment["DTRAIN_FUSION_THRESHOLD"] = threshold;
    const auto body = [](int rank) {
      ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
      if (rank != 0) {
        int32_t one = 1, all[3] = {};
        dtrain_handle handle = 0;
        ASSERT_EQ(dtrain_allreduce_async(&one, &one, 1, DTRAIN_INT32, DTRAIN_MAX, nullptr, &handle),
                  DTRAIN_OK);
        EXPECT_EQ(dtrain_wait(handle), DTRAIN_ERROR_MISMATCH);
        EXPECT_THAT(dtrain_last_error(),
                    HasSubstr("rank 0 for dtrain_join, which works with sums and averages only"));
        ASSERT_EQ(dtrain_allgather_async(&one, all, 1, DTRAIN_INT32, nullptr, &handle), DTRAIN_OK);
        EXPECT_EQ(dtrain_wait(handle), DTRAIN_ERROR_MISMATCH);
        ASSERT_EQ(dtrain_allreduce_async(&one, &one, 1, DTRAIN_INT32, DTRAIN_SUM, nullptr, &handle),
                  DTRAIN_OK);
        EXPECT_EQ(dtrain_wait(handle), DTRAIN_OK) << dtrain_last_error();
        EXPECT_EQ(one, 2);
        // Names in different orders, and one that the ranks mean differently, beside it.
        int32_t a = 1, b = 10;
        dtrain_handle handles[3] = {};
        dtrain_options named = DTRAIN_OPTIONS_INIT;
        for (int i = 0; i < 2; ++i) {
          const bool first = (i == 0) == (rank == 1);
          named.name = first ? "a" : "b";
          int32_t* at = first ? &a : &b;
          ASSERT_EQ(
              dtrain_allreduce_async(at, at, 1, DTRAIN_INT32, DTRAIN_SUM, &named, &handles[i]),
              DTRAIN_OK);
        }
        named.name = "c";
        int32_t c[2] = {};
        ASSERT_EQ(dtrain_allreduce_async(c, c, static_cast<size_t>(rank), DTRAIN_INT32, DTRAIN_SUM,
                                         &named, &handles[2]),
                  DTRAIN_OK);
        EXPECT_EQ(dtrain_wait(handles[0]), DTRAIN_OK) << dtrain_last_error();
        EXPECT_EQ(dtrain_wait(handles[1]), DTRAIN_OK) << dtrain_last_error();
        EXPECT_EQ(dtrain_wait(handles[2]), DTRAIN_ERROR_MISMATCH);
        EXPECT_EQ(a + b, 22);
      }
      EXPECT_EQ(dtrain_join(nullptr), DTRAIN_OK) << dtrain_last_error();
      int32_t one = 1;
      EXPECT_EQ(dtrain_allreduce(&one, &one, 1, DTRAIN_INT32, DTRAIN_SUM), DTRAIN_OK);
      EXPECT_EQ(one, 3);
      EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
    };
    EXPECT_EQ(Ranks::Run(3, body, options), AllZero(3));
  }
}

}  // namespace
}  // namespace dtrain::runtime
