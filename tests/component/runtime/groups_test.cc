// SPDX-License-Identifier: Apache-2.0
#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
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
using testing::Not;

std::vector<int> AllZero(int n) { return std::vector<int>(static_cast<size_t>(n), 0); }

RanksOptions Patient(const char* seconds = "40") {
  RanksOptions options;
  options.environment["DTRAIN_COLLECTIVE_TIMEOUT_SECONDS"] = seconds;
  return options;
}

int64_t SumOver(dtrain_group group, int64_t mine) {
  dtrain_options options = DTRAIN_OPTIONS_INIT;
  options.group = group;
  dtrain_handle handle = 0;
  int64_t sum = -1;
  EXPECT_EQ(dtrain_allreduce_async(&mine, &sum, 1, DTRAIN_INT64, DTRAIN_SUM, &options, &handle),
            DTRAIN_OK)
      << dtrain_last_error();
  EXPECT_EQ(dtrain_wait(handle), DTRAIN_OK) << dtrain_last_error();
  return sum;
}

TEST(GroupsTest, AreMadeByColorAndRankedByKey) {
  const auto ends = Ranks::Run(
      5,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
        dtrain_group odd_even = nullptr;
        ASSERT_EQ(dtrain_group_create(rank % 2, -rank, &odd_even), DTRAIN_OK)
            << dtrain_last_error();
        const int members = rank % 2 == 0 ? 3 : 2;
        EXPECT_EQ(dtrain_group_size(odd_even), members);
        EXPECT_EQ(dtrain_group_rank(odd_even), members - 1 - rank / 2) << "by falling rank";
        EXPECT_EQ(SumOver(odd_even, 100 + rank), rank % 2 == 0 ? 306 : 204);

        dtrain_group some = nullptr;
        ASSERT_EQ(dtrain_group_create(rank < 2 ? -1 : 7, 0, &some), DTRAIN_OK);
        EXPECT_EQ(some == nullptr, rank < 2);
        if (some != nullptr) {
          EXPECT_EQ(SumOver(some, rank), 9);
        }
        dtrain_group alone = nullptr;
        ASSERT_EQ(dtrain_group_create(rank, 0, &alone), DTRAIN_OK);
        EXPECT_EQ(dtrain_group_size(alone), 1);
        EXPECT_EQ(SumOver(alone, rank), rank);

        EXPECT_EQ(SumOver(nullptr, 1), 5) << "all ranks";
        EXPECT_EQ(dtrain_group_rank(nullptr), rank);
        EXPECT_EQ(dtrain_group_size(nullptr), 5);

        EXPECT_EQ(dtrain_group_free(odd_even), DTRAIN_OK) << dtrain_last_error();
        EXPECT_EQ(dtrain_group_free(odd_even), DTRAIN_ERROR_INVALID_ARGUMENT);
        EXPECT_EQ(dtrain_group_free(nullptr), DTRAIN_ERROR_INVALID_ARGUMENT);
        EXPECT_EQ(dtrain_group_rank(odd_even), -1);
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << "which frees the others";
        EXPECT_EQ(dtrain_group_rank(alone), -1);
        EXPECT_EQ(dtrain_group_size(nullptr), -1);
      },
      Patient());
  EXPECT_EQ(ends, AllZero(5));
}

TEST(GroupsTest, RootsAndCountsAreTheGroups) {
  const auto ends = Ranks::Run(
      4,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        dtrain_group group = nullptr;  // 2 and 3, and 3 first
        ASSERT_EQ(dtrain_group_create(rank < 2 ? -1 : 0, -rank, &group), DTRAIN_OK);
        if (rank >= 2) {
          dtrain_options options = DTRAIN_OPTIONS_INIT;
          options.group = group;
          dtrain_handle handle = 0;
          int32_t value = rank;
          EXPECT_EQ(dtrain_broadcast_async(&value, 1, DTRAIN_INT32, 2, &options, &handle),
                    DTRAIN_ERROR_INVALID_ARGUMENT);
          ASSERT_EQ(dtrain_broadcast_async(&value, 1, DTRAIN_INT32, 0, &options, &handle),
                    DTRAIN_OK);
          EXPECT_EQ(dtrain_wait(handle), DTRAIN_OK);
          EXPECT_EQ(value, 3);
          int32_t mine = rank, all[2] = {};
          ASSERT_EQ(dtrain_allgather_async(&mine, all, 1, DTRAIN_INT32, &options, &handle),
                    DTRAIN_OK);
          EXPECT_EQ(dtrain_wait(handle), DTRAIN_OK);
          EXPECT_THAT(all, testing::ElementsAre(3, 2));
        }
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      Patient());
  EXPECT_EQ(ends, AllZero(4));
}

TEST(GroupsTest, ManyMayBeMadeAndFreed) {
  const auto ends = Ranks::Run(
      3,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        for (int i = 0; i < 30; ++i) {
          dtrain_group group = nullptr;
          ASSERT_EQ(dtrain_group_create(rank == i % 3 ? 1 : 0, 0, &group), DTRAIN_OK)
              << dtrain_last_error();
          EXPECT_EQ(SumOver(group, 1), rank == i % 3 ? 1 : 2);
          ASSERT_EQ(dtrain_group_free(group), DTRAIN_OK) << dtrain_last_error();
        }
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      Patient());
  EXPECT_EQ(ends, AllZero(3));
}

TEST(GroupsTest, JobOfOneRankHasThemToo) {
  const auto ends = Ranks::Run(1, [](int) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    dtrain_group group = nullptr;
    ASSERT_EQ(dtrain_group_create(3, 0, &group), DTRAIN_OK);
    EXPECT_EQ(dtrain_group_size(group), 1);
    EXPECT_EQ(SumOver(group, 5), 5);
    ASSERT_EQ(dtrain_group_create(-1, 0, &group), DTRAIN_OK);
    EXPECT_EQ(group, nullptr);
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  });
  EXPECT_EQ(ends, AllZero(1));
}

// A rank that leaves the job is missing in its groups, too.
TEST(GroupsTest, RankThatLeavesWhileItsGroupNeedsItIsNamed) {
  Ranks::Run(
      4,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        dtrain_group pair = nullptr;
        ASSERT_EQ(dtrain_group_create(rank / 2, 0, &pair), DTRAIN_OK);
        ASSERT_EQ(SumOver(pair, 1), 2);
        ASSERT_EQ(dtrain_barrier(), DTRAIN_OK);
        if (rank != 2) {
          EXPECT_NE(dtrain_finalize(), DTRAIN_OK);
        } else {
          dtrain_options options = DTRAIN_OPTIONS_INIT;
          options.group = pair;
          dtrain_handle handle = 0;
          ASSERT_EQ(dtrain_barrier_async(&options, &handle), DTRAIN_OK);
          EXPECT_EQ(dtrain_wait(handle), DTRAIN_ERROR_MISMATCH);
        }
        EXPECT_THAT(dtrain_last_error(), AllOf(HasSubstr("group of ranks 2, 3"),
                                               HasSubstr("rank 3 is leaving the job")));
      },
      Patient("600"));
}

TEST(GroupsTest, RanksThatDifferAreNamedByTheirNumbersInTheJob) {
  Ranks::Run(
      4,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        dtrain_group pair = nullptr;
        ASSERT_EQ(dtrain_group_create(rank % 2, -rank, &pair), DTRAIN_OK);
        dtrain_options options = DTRAIN_OPTIONS_INIT;
        options.group = pair;
        options.name = "gradient";
        std::vector<int32_t> values(8, 1);
        dtrain_handle handle = 0;
        ASSERT_EQ(dtrain_allreduce_async(values.data(), values.data(), rank < 2 ? 4 : 8,
                                         DTRAIN_INT32, DTRAIN_SUM, &options, &handle),
                  DTRAIN_OK);
        EXPECT_EQ(dtrain_wait(handle), DTRAIN_ERROR_MISMATCH);
        const std::string low = std::to_string(rank % 2), high = std::to_string(rank % 2 + 2);
        EXPECT_THAT(dtrain_last_error(),
                    AllOf(HasSubstr("rank " + low + " for allreduce sum of 4 int32"),
                          HasSubstr("rank " + high + " for allreduce sum of 8 int32")));
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
      },
      Patient());
}

// M2: who waits in another group of the broken job fails at once as well.
TEST(GroupsTest, FailureInOneGroupEndsTheOthersOfTheJob) {
  const auto ends = Ranks::Run(
      4,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        dtrain_group pair = nullptr;
        ASSERT_EQ(dtrain_group_create(rank / 2, 0, &pair), DTRAIN_OK);
        ASSERT_EQ(SumOver(pair, 1), 2);
        ASSERT_EQ(dtrain_barrier(), DTRAIN_OK);
        if (rank == 3) raise(SIGKILL);
        dtrain_status status = DTRAIN_OK;
        if (rank == 2) {
          dtrain_options options = DTRAIN_OPTIONS_INIT;
          options.group = pair;
          dtrain_handle handle = 0;
          ASSERT_EQ(dtrain_barrier_async(&options, &handle), DTRAIN_OK);
          status = dtrain_wait(handle);
          EXPECT_THAT(dtrain_last_error(),
                      AllOf(HasSubstr("rank 2 of 4"), HasSubstr("group of ranks 2, 3")));
        } else {
          status = dtrain_barrier();
        }
        EXPECT_EQ(status, DTRAIN_ERROR_NETWORK) << dtrain_last_error();
      },
      Ending({{3, -SIGKILL}}, Patient("600")));
  EXPECT_EQ(ends, (std::vector<int>{0, 0, 0, -SIGKILL}));
}

TEST(GroupsTest, EachRankUsesItsGroupsInAnOrderOfItsOwn) {
  const auto ends = Ranks::Run(
      3,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
        std::vector<dtrain_group> groups{nullptr};
        for (int i = 0; i < 3; ++i) {
          dtrain_group group = nullptr;
          ASSERT_EQ(dtrain_group_create(i == 2 && rank == 0 ? 1 : 0, 0, &group), DTRAIN_OK);
          groups.push_back(group);
        }
        std::mt19937 own(static_cast<unsigned>(rank));
        for (int round = 0; round < 100 && !testing::Test::HasFailure(); ++round) {
          struct Sum {
            dtrain_handle handle = 0;
            int64_t value = 1;
          };
          std::vector<Sum> sums(groups.size());
          std::vector<size_t> order(groups.size());
          std::iota(order.begin(), order.end(), 0);
          std::shuffle(order.begin(), order.end(), own);
          for (const size_t i : order) {
            dtrain_options options = DTRAIN_OPTIONS_INIT;
            options.group = groups[i];
            ASSERT_EQ(dtrain_allreduce_async(&sums[i].value, &sums[i].value, 1, DTRAIN_INT64,
                                             DTRAIN_SUM, &options, &sums[i].handle),
                      DTRAIN_OK);
          }
          std::shuffle(order.begin(), order.end(), own);
          for (const size_t i : order) {
            EXPECT_EQ(dtrain_wait(sums[i].handle), DTRAIN_OK) << dtrain_last_error();
            EXPECT_EQ(sums[i].value, dtrain_group_size(groups[i]));
          }
        }
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      Patient());
  EXPECT_EQ(ends, AllZero(3));
}

// In an order that nobody knows.
TEST(GroupsTest, EachThreadUsesAGroup) {
  const auto ends = Ranks::Run(
      2,
      [](int) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
        std::vector<std::thread> threads;
        std::mutex calls;  // only dtrain_wait may be called beside another call
        for (int i = 0; i < 3; ++i) {
          dtrain_group group = nullptr;
          ASSERT_EQ(dtrain_group_create(0, 0, &group), DTRAIN_OK);
          threads.emplace_back([group, &calls] {
            dtrain_options options = DTRAIN_OPTIONS_INIT;
            options.group = group;
            for (int step = 0; step < 200 && !testing::Test::HasFailure(); ++step) {
              int64_t value = step;
              dtrain_handle handle = 0;
              {
                const std::lock_guard<std::mutex> lock(calls);
                EXPECT_EQ(dtrain_allreduce_async(&value, &value, 1, DTRAIN_INT64, DTRAIN_SUM,
                                                 &options, &handle),
                          DTRAIN_OK)
                    << dtrain_last_error();
              }
              EXPECT_EQ(dtrain_wait(handle), DTRAIN_OK) << dtrain_last_error();
              EXPECT_EQ(value, 2 * step);
            }
          });
        }
        for (std::thread& thread : threads) thread.join();
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      Patient());
  EXPECT_EQ(ends, AllZero(2));
}

// Neither collective can run on both ranks before each rank has the group, which another thread
// makes.
void MakesAGroupBetween(int rank) {
  ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
  const char* const names[2] = {rank == 0 ? "one" : "other", rank == 0 ? "other" : "one"};
  int64_t values[2] = {1, 1};
  dtrain_handle handles[2] = {};
  const auto start = [&](size_t i) {
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    options.name = names[i];
    ASSERT_EQ(dtrain_allreduce_async(&values[i], &values[i], 1, DTRAIN_INT64, DTRAIN_SUM, &options,
                                     &handles[i]),
              DTRAIN_OK)
        << dtrain_last_error();
  };
  start(0);
  dtrain_group group = nullptr;
  std::thread makes(
      [&group] { EXPECT_EQ(dtrain_group_create(0, 0, &group), DTRAIN_OK) << dtrain_last_error(); });
  makes.join();
  start(1);
  for (const dtrain_handle handle : handles) {
    EXPECT_EQ(dtrain_wait(handle), DTRAIN_OK) << dtrain_last_error();
  }
  EXPECT_THAT(values, testing::ElementsAre(2, 2));
  ASSERT_NE(group, nullptr);
  EXPECT_EQ(SumOver(group, 1), 2);
  EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
}

TEST(GroupsTest, OneIsMadeWhileTheRanksHaveDifferentCollectivesPending) {
  RanksOptions options = Patient("600");  // a hang meets the test's deadline
  for (const char* mapping : {"(vector,(0,1,2))", "(vector,(0,2,1))"}) {
    options.mapping = mapping;
    EXPECT_EQ(Ranks::Run(2, MakesAGroupBetween, options), AllZero(2)) << mapping;
  }
}

// Rank 1 makes its own only when a collective of rank 0's main thread is done.
TEST(GroupsTest, OtherCallsGoOnWhileOneIsMade) {
  const auto ends = Ranks::Run(
      2,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        for (int round = 0; round < 20 && !testing::Test::HasFailure(); ++round) {
          dtrain_group group = nullptr;
          const auto make = [&group] {
            EXPECT_EQ(dtrain_group_create(0, 0, &group), DTRAIN_OK) << dtrain_last_error();
          };
          if (rank == 0) {
            std::thread makes(make);
            EXPECT_EQ(SumOver(nullptr, 1), 2);
            makes.join();
          } else {
            EXPECT_EQ(SumOver(nullptr, 1), 2);
            make();
          }
          ASSERT_NE(group, nullptr);
          EXPECT_EQ(SumOver(group, 1), 2);
          ASSERT_EQ(dtrain_group_free(group), DTRAIN_OK) << dtrain_last_error();
        }
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
      },
      Patient("600"));
  EXPECT_EQ(ends, AllZero(2));
}

// Both calls mean the same, so it does not matter which of them is whose partner.
TEST(GroupsTest, ThreadsMakeThemInTurns) {
  const auto ends = Ranks::Run(
      3,
      [](int) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        dtrain_group groups[2] = {};
        std::vector<std::thread> threads;
        for (dtrain_group& group : groups) {
          threads.emplace_back([&group] {
            EXPECT_EQ(dtrain_group_create(0, 0, &group), DTRAIN_OK) << dtrain_last_error();
          });
        }
        for (std::thread& thread : threads) thread.join();
        for (const dtrain_group group : groups) EXPECT_EQ(dtrain_group_size(group), 3);
        EXPECT_NE(groups[0], groups[1]);
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
      },
      Patient());
  EXPECT_EQ(ends, AllZero(3));
}

TEST(GroupsTest, WhatAGroupHasDoneCanBeWaitedForWhenItIsFreed) {
  const auto ends = Ranks::Run(
      2,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        dtrain_options options = DTRAIN_OPTIONS_INIT;
        ASSERT_EQ(dtrain_group_create(0, 0, &options.group), DTRAIN_OK);
        int64_t value = rank;
        dtrain_handle handle = 0;
        ASSERT_EQ(
            dtrain_allreduce_async(&value, &value, 1, DTRAIN_INT64, DTRAIN_SUM, &options, &handle),
            DTRAIN_OK);
        ASSERT_EQ(dtrain_group_free(options.group), DTRAIN_OK) << dtrain_last_error();
        EXPECT_EQ(value, 1);
        EXPECT_EQ(dtrain_wait(handle), DTRAIN_OK) << dtrain_last_error();
        EXPECT_EQ(dtrain_wait(handle), DTRAIN_ERROR_INVALID_ARGUMENT);
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      Patient());
  EXPECT_EQ(ends, AllZero(2));
}

// The job goes on: with the world, with other groups and with new ones.
void OneGroupTimesOut(int rank) {
  constexpr int kLate = 1;
  ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
  dtrain_group other = nullptr;
  dtrain_options options = DTRAIN_OPTIONS_INIT;
  ASSERT_EQ(dtrain_group_create(0, 0, &other), DTRAIN_OK);
  ASSERT_EQ(dtrain_group_create(0, 0, &options.group), DTRAIN_OK);
  EXPECT_EQ(dtrain_group_set_timeout(options.group, -1), DTRAIN_ERROR_INVALID_ARGUMENT);
  // Longer than a busy machine holds rank 2 up, which would be named beside rank 1.
  ASSERT_EQ(dtrain_group_set_timeout(options.group, 700), DTRAIN_OK) << dtrain_last_error();
  const auto times_out = [&] {
    dtrain_handle handle = 0;
    ASSERT_EQ(dtrain_barrier_async(&options, &handle), DTRAIN_OK) << dtrain_last_error();
    EXPECT_EQ(dtrain_wait(handle), DTRAIN_ERROR_TIMEOUT);
    EXPECT_THAT(dtrain_last_error(), AllOf(HasSubstr("timed out waiting for rank 1"),
                                           HasSubstr("the group's own timeout of 700 ms"),
                                           HasSubstr("only this group has failed"),
                                           Not(HasSubstr("DTRAIN_COLLECTIVE_TIMEOUT_SECONDS"))));
  };
  if (rank != kLate) times_out();
  EXPECT_EQ(dtrain_barrier(), DTRAIN_OK) << dtrain_last_error();
  times_out();  // the late rank, and once more
  EXPECT_EQ(dtrain_group_set_timeout(options.group, 0), DTRAIN_ERROR_TIMEOUT);
  EXPECT_EQ(SumOver(other, 1), 3);
  EXPECT_EQ(dtrain_group_free(options.group), DTRAIN_OK) << dtrain_last_error();
  ASSERT_EQ(dtrain_group_create(0, 0, &options.group), DTRAIN_OK) << dtrain_last_error();
  EXPECT_EQ(SumOver(options.group, 1), 3);
  EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
}

TEST(GroupsTest, ATimeoutFailsItsGroupAlone) {
  EXPECT_EQ(Ranks::Run(3, OneGroupTimesOut, Patient()), AllZero(3));
  RanksOptions nodes = Patient();
  nodes.mapping = "(vector,(0,3,1))";
  EXPECT_EQ(Ranks::Run(3, OneGroupTimesOut, nodes), AllZero(3));
}

// Of all ranks, as init_process_group(timeout=) sets it.
TEST(GroupsTest, WhatFindsNoPartnerNamesTheLimitThatWasSetForTheGroup) {
  const auto ends = Ranks::Run(
      2,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        ASSERT_EQ(dtrain_group_set_timeout(nullptr, 2000), DTRAIN_OK) << dtrain_last_error();
        dtrain_options options = DTRAIN_OPTIONS_INIT;
        options.name = rank == 0 ? "mine" : "yours";
        dtrain_handle handle = 0;
        ASSERT_EQ(dtrain_barrier_async(&options, &handle), DTRAIN_OK) << dtrain_last_error();
        dtrain_status status = DTRAIN_OK;
        for (int done = 0; done == 0;) status = dtrain_test(handle, &done);
        EXPECT_EQ(status, DTRAIN_ERROR_TIMEOUT);
        EXPECT_THAT(dtrain_last_error(),
                    AllOf(HasSubstr("\"mine\""), HasSubstr("\"yours\""),
                          HasSubstr("the group's own timeout of 2 s"),
                          Not(HasSubstr("DTRAIN_COLLECTIVE_TIMEOUT_SECONDS"))));
        ASSERT_EQ(dtrain_group_set_timeout(nullptr, 0), DTRAIN_OK) << dtrain_last_error();
        EXPECT_EQ(dtrain_barrier(), DTRAIN_OK) << dtrain_last_error();
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      Patient());
  EXPECT_EQ(ends, AllZero(2));
}

// Rank 1 would wait for longer.
TEST(GroupsTest, WhatFindsNoPartnerAsAnotherRanksTimeIsOverSaysSo) {
  const auto ends = Ranks::Run(
      2,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        // Both begin together: a rank that comes late has another message.
        ASSERT_EQ(dtrain_barrier(), DTRAIN_OK) << dtrain_last_error();
        if (rank == 0) {
          ASSERT_EQ(dtrain_group_set_timeout(nullptr, 2000), DTRAIN_OK) << dtrain_last_error();
        }
        dtrain_options options = DTRAIN_OPTIONS_INIT;
        options.name = rank == 0 ? "mine" : "yours";
        dtrain_handle handle = 0;
        ASSERT_EQ(dtrain_barrier_async(&options, &handle), DTRAIN_OK) << dtrain_last_error();
        dtrain_status status = DTRAIN_OK;
        for (int done = 0; done == 0;) status = dtrain_test(handle, &done);
        EXPECT_EQ(status, DTRAIN_ERROR_TIMEOUT);
        const std::string text = dtrain_last_error();
        EXPECT_EQ(text.find("another rank's time was over") != std::string::npos, rank == 1)
            << text;
        EXPECT_THAT(text, AllOf(HasSubstr("\"mine\""), HasSubstr("\"yours\""),
                                HasSubstr(rank == 0 ? "the group's own timeout of 2 s"
                                                    : "DTRAIN_COLLECTIVE_TIMEOUT_SECONDS")));
        ASSERT_EQ(dtrain_group_set_timeout(nullptr, 0), DTRAIN_OK) << dtrain_last_error();
        EXPECT_EQ(dtrain_barrier(), DTRAIN_OK) << dtrain_last_error();
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      Patient());
  EXPECT_EQ(ends, AllZero(2));
}

// It would be taken for the partner of a rank that makes a group.
TEST(GroupsTest, NoCollectiveHasTheNameOfWhatMakesThem) {
  const auto ends = Ranks::Run(
      2,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        dtrain_options options = DTRAIN_OPTIONS_INIT;
        options.name = "dtrain_group_create";
        dtrain_handle handle = 1;
        const int32_t mine[2] = {0, 0};
        int32_t all[4] = {};
        if (rank == 0) {
          EXPECT_EQ(dtrain_allgather_async(mine, all, 2, DTRAIN_INT32, &options, &handle),
                    DTRAIN_ERROR_INVALID_ARGUMENT);
          EXPECT_THAT(dtrain_last_error(), HasSubstr("'dtrain_group_create', which is reserved"));
          EXPECT_EQ(handle, 0u);
        }
        dtrain_group group = nullptr;
        ASSERT_EQ(dtrain_group_create(0, 0, &group), DTRAIN_OK) << dtrain_last_error();
        EXPECT_EQ(SumOver(group, 1), 2);
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      Patient());
  EXPECT_EQ(ends, AllZero(2));
}

// As torch.distributed does, which asks whether it may use a group again. A rank that waits in
// dtrain_finalize for another one looks whether the job has failed meanwhile.
TEST(GroupsTest, OneThatHasTimedOutAndIsAskedAboutDoesNotFailTheEnd) {
  const auto ends = Ranks::Run(
      2,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        dtrain_options options = DTRAIN_OPTIONS_INIT;
        ASSERT_EQ(dtrain_group_create(0, 0, &options.group), DTRAIN_OK);
        ASSERT_EQ(dtrain_group_set_timeout(options.group, 50), DTRAIN_OK);
        dtrain_handle handle = 0;
        if (rank == 0) {
          ASSERT_EQ(dtrain_barrier_async(&options, &handle), DTRAIN_OK);
          EXPECT_EQ(dtrain_wait(handle), DTRAIN_ERROR_TIMEOUT);
          EXPECT_EQ(dtrain_group_set_timeout(options.group, 0), DTRAIN_ERROR_TIMEOUT);
        }
        EXPECT_EQ(dtrain_barrier(), DTRAIN_OK);
        if (rank == 1) poll(nullptr, 0, 500);  // what rank 0 does meanwhile cannot be seen
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
      },
      Patient());
  EXPECT_EQ(ends, AllZero(2));
}

// Every kind, blocking and not, on groups of different shapes, in an order that only the seed
// knows; results against what a serial program computes.
class Chaos {
 public:
  Chaos(int rank, unsigned seed)
      : rank_(rank), same_(seed), own_(seed * 31 + static_cast<unsigned>(rank)) {}

  void Run(int steps) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
    groups_.push_back({nullptr, {}});
    for (int r = 0; r < dtrain_size(); ++r) groups_[0].members.push_back(r);
    for (int i = 0; i < 3; ++i) MakeGroup();
    for (int step = 0; step < steps && !testing::Test::HasFatalFailure(); ++step) Step(step);
    for (auto& pending : pending_) Finish(*pending);
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
  }

 private:
  struct Group {
    dtrain_group handle;
    std::vector<int> members;  // by rank in the group; known to all ranks of the job
  };
  struct Pending {
    dtrain_handle handle = 0;
    std::vector<int64_t> input, output, expected;
    int step = 0;
  };

  void MakeGroup() {
    const unsigned shape = 1 + same_() % 3;
    Group group{nullptr, {}};
    const int color = rank_ % static_cast<int>(shape);
    for (int r = 0; r < dtrain_size(); ++r) {
      if (r % static_cast<int>(shape) == color) group.members.insert(group.members.begin(), r);
    }
    ASSERT_EQ(dtrain_group_create(color, -rank_, &group.handle), DTRAIN_OK) << dtrain_last_error();
    groups_.push_back(group);
  }

  static int64_t Value(int step, int rank, size_t i) {
    return (step * 7 + rank * 13 + static_cast<int64_t>(i) * 5) % 101 - 50;
  }

  // What the group's ranks get from one collective of kind `kind`.
  void Expect(Pending& p, unsigned kind, const std::vector<int>& members, size_t count, int root,
              size_t me) {
    const auto n = members.size();
    const auto sum = [&](size_t i) {
      int64_t total = 0;
      for (const int m : members) total += Value(p.step, m, i);
      return total;
    };
    for (size_t i = 0; i < count; ++i) {
      if (kind == 0) p.expected.push_back(sum(i));
      if (kind == 1) p.expected.push_back(Value(p.step, members[static_cast<size_t>(root)], i));
      if (kind == 3) p.expected.push_back(sum(me * count + i));
      if (kind == 5 && static_cast<int>(me) == root) p.expected.push_back(sum(i));
    }
    for (size_t r = 0; r < n && (kind == 2 || kind == 4); ++r) {
      for (size_t i = 0; i < count; ++i) {
        p.expected.push_back(Value(p.step, members[r], kind == 2 ? i : me * count + i));
      }
    }
  }

  void Step(int step) {
    const Group& group = groups_[same_() % groups_.size()];
    const unsigned kind = same_() % 7;  // the numbers of the cases below
    const size_t count = same_() % 5 == 0 ? same_() % 3000 : same_() % 20;
    const bool blocking = same_() % 4 == 0;
    const unsigned root_at = same_();
    // Colors have groups of different sizes: what all ranks draw must not depend on that.
    const auto n = group.members.size();
    const auto me = static_cast<size_t>(
        std::find(group.members.begin(), group.members.end(), rank_) - group.members.begin());
    const int root = static_cast<int>(root_at % n);
    auto p = std::make_unique<Pending>();
    p->step = step;
    p->input.resize((kind == 3 || kind == 4) ? n * count : count);
    for (size_t i = 0; i < p->input.size(); ++i) p->input[i] = Value(step, rank_, i);
    p->output.assign((kind == 2 || kind == 4) ? n * count : count, 99);
    if (kind == 1) p->output = p->input;
    Expect(*p, kind, group.members, count, root, me);
    Start(*p, kind, group.handle, count, root, blocking && group.handle == nullptr);
    if (p->handle == 0) return Check(*p);
    pending_.push_back(std::move(p));
    while (!pending_.empty() && own_() % 8 == 0) {
      const size_t at = own_() % pending_.size();
      Finish(*pending_[at]);
      pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(at));
    }
  }

  static void Start(Pending& p, unsigned kind, dtrain_group group, size_t count, int root,
                    bool blocking) {
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    options.group = group;
    const auto type = DTRAIN_INT64;
    const int64_t* in = p.input.data();
    int64_t* out = p.output.data();
    dtrain_handle* h = &p.handle;
    dtrain_status status = DTRAIN_ERROR_INTERNAL;
    switch (kind) {
      case 0:
        status = blocking ? dtrain_allreduce(in, out, count, type, DTRAIN_SUM)
                          : dtrain_allreduce_async(in, out, count, type, DTRAIN_SUM, &options, h);
        break;
      case 1:
        status = blocking ? dtrain_broadcast(out, count, type, root)
                          : dtrain_broadcast_async(out, count, type, root, &options, h);
        break;
      case 2:
        status = blocking ? dtrain_allgather(in, out, count, type)
                          : dtrain_allgather_async(in, out, count, type, &options, h);
        break;
      case 3:
        status = blocking
                     ? dtrain_reduce_scatter(in, out, count, type, DTRAIN_SUM)
                     : dtrain_reduce_scatter_async(in, out, count, type, DTRAIN_SUM, &options, h);
        break;
      case 4:
        status = blocking ? dtrain_alltoall(in, out, count, type)
                          : dtrain_alltoall_async(in, out, count, type, &options, h);
        break;
      case 5:
        status = blocking
                     ? dtrain_reduce(in, out, count, type, DTRAIN_SUM, root)
                     : dtrain_reduce_async(in, out, count, type, DTRAIN_SUM, root, &options, h);
        break;
      default:
        status = blocking ? dtrain_barrier() : dtrain_barrier_async(&options, h);
    }
    ASSERT_EQ(status, DTRAIN_OK) << dtrain_last_error();
  }

  void Finish(Pending& p) {
    ASSERT_EQ(dtrain_wait(p.handle), DTRAIN_OK) << dtrain_last_error();
    Check(p);
  }
  static void Check(const Pending& p) {
    for (size_t i = 0; i < p.expected.size(); ++i) {
      ASSERT_EQ(p.output[i], p.expected[i]) << "step " << p.step << ", element " << i;
    }
  }

  const int rank_;
  std::mt19937 same_, own_;
  std::vector<Group> groups_;
  std::vector<std::unique_ptr<Pending>> pending_;
};

struct Layout {
  const char* name;
  int ranks;
  const char* mapping;  // nodes that the launcher speaks of
};

class ChaosTest : public testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(
    Layouts, ChaosTest,
    testing::Values(Layout{"Alone", 1, "(vector,(0,1,1))"}, Layout{"Two", 2, "(vector,(0,1,2))"},
                    Layout{"Five", 5, "(vector,(0,1,5))"},
                    Layout{"TwoNodesOfOne", 2, "(vector,(0,2,1))"},
                    Layout{"TwoNodesInTurn", 4, "(vector,(0,2,1))"},
                    Layout{"ThreeUnequalNodes", 6, "(vector,(0,1,3),(1,1,2),(2,1,1))"}),
    [](const auto& info) { return info.param.name; });

TEST_P(ChaosTest, EverythingInterleavedGivesTheSerialResult) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  RanksOptions options = Patient();
  options.mapping = GetParam().mapping;
  options.environment["DTRAIN_ADDRESS"] = "127.0.0.1";
  const auto ends = Ranks::Run(
      GetParam().ranks, [&](int rank) { Chaos(rank, seed).Run(250); }, options);
  EXPECT_EQ(ends, AllZero(GetParam().ranks));
}

}  // namespace
}  // namespace dtrain::runtime
