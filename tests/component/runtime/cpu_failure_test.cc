// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/component/runtime/cpu_ranks.h"

namespace dtrain::runtime {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = Collective::Kind;

Collective Allreduce(std::vector<float>& data, uint64_t number) {
  Collective what;
  what.kind = Kind::kAllreduce;
  what.number = number;
  what.input = what.output = data.data();
  what.count = data.size();
  what.type = DTRAIN_FLOAT32;
  return what;
}

// Runs one that must fail, and returns how.
Error MustFail(CpuCommunicator& communicator, const Collective& what,
               std::chrono::milliseconds timeout = kLong) {
  Spent spent;
  const MaybeError error = communicator.Run(what, timeout, spent);
  EXPECT_TRUE(error) << "rank " << communicator.rank();
  return error.value_or(Error{DTRAIN_OK, "no error"});
}

// All-reduces until one fails.
Error RunUntilFailure(CpuCommunicator& communicator, size_t count) {
  std::vector<float> data(count, 1.0f);
  Spent spent;
  for (uint64_t number = 0;; ++number) {
    const auto error = communicator.Run(Allreduce(data, number), kLong, spent);
    if (error) return *error;
  }
}

constexpr int kRanksOfLayout = 4;
const std::vector<std::vector<int>> kLayouts = {{0, 0, 0, 0}, {0, 0, 1, 1}, {0, 1, 2, 2}};

// Two of four ranks ask for something else: all four say who asked for what.
TEST(CpuFailureTest, RanksThatDifferAreNamedOnAllRanks) {
  struct Difference {
    std::function<void(Collective&)> make;
    std::string ours, theirs;
  };
  const Difference differences[] = {
      {[](Collective& c) { c.count = 2; }, "allreduce sum of 5 float32",
       "allreduce sum of 2 float32"},
      {[](Collective& c) { c.count = 0; }, "of 5 float32", "of 0 float32"},
      {[](Collective& c) { c.type = DTRAIN_INT32; }, "float32", "allreduce sum of 5 int32"},
      {[](Collective& c) { c.op = DTRAIN_MAX; }, "allreduce sum", "allreduce max"},
      {[](Collective& c) { c.kind = Kind::kBarrier; }, "allreduce sum", "barrier"},
      {[](Collective& c) { c.number = 7; }, "as number 0", "as number 7"},
  };
  for (const auto& nodes : kLayouts) {
    for (const Difference& difference : differences) {
      RunCpuRanks(
          CpuSetup::Nodes(nodes),
          [&](CpuCommunicator& communicator) {
            std::vector<float> data(5);
            Collective what = Allreduce(data, 0);
            const int rank = communicator.rank();
            if (rank == 1 || rank == 3) difference.make(what);
            const Error error = MustFail(communicator, what);
            EXPECT_EQ(error.code, DTRAIN_ERROR_MISMATCH) << error.message;
            // With several nodes, a node whose own ranks differ speaks first.
            EXPECT_THAT(error.message,
                        AllOf(HasSubstr("do not ask for the same thing: "),
                              HasSubstr(difference.ours), HasSubstr(difference.theirs)));
            if (nodes[3] == 0) {
              EXPECT_THAT(error.message,
                          AllOf(HasSubstr("ranks 0, 2 for "), HasSubstr("ranks 1, 3 for ")));
            }
            EXPECT_EQ(MustFail(communicator, what).code, DTRAIN_ERROR_MISMATCH);
          },
          false);
    }
  }
}

// The difference is between nodes only.
TEST(CpuFailureTest, NodesThatDifferAreNamedOnAllRanks) {
  for (const size_t other : {size_t{1}, size_t{100000}}) {
    RunCpuRanks(
        CpuSetup::Nodes({0, 0, 1, 1}),
        [&](CpuCommunicator& communicator) {
          std::vector<float> data(communicator.rank() < 2 ? 5 : other);
          const Error error = MustFail(communicator, Allreduce(data, 0));
          EXPECT_EQ(error.code, DTRAIN_ERROR_MISMATCH);
          EXPECT_THAT(error.message, AllOf(HasSubstr("ranks 0, 1 for allreduce sum of 5 float32"),
                                           HasSubstr("ranks 2, 3 for allreduce sum of " +
                                                     std::to_string(other) + " float32")));
        },
        false);
  }
}

// More nodes than tell each other directly: not all of them meet the one that differs.
const std::vector<int> kManyNodes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};

TEST(CpuFailureTest, OneOfManyNodesThatDiffersIsNamedOnAllRanks) {
  for (const size_t other : {size_t{1}, size_t{5000}, size_t{1000000}}) {
    RunCpuRanks(
        CpuSetup::Nodes(kManyNodes),
        [&](CpuCommunicator& communicator) {
          std::vector<float> data(communicator.rank() == 4 ? other : 300);
          const Error error = MustFail(communicator, Allreduce(data, 0));
          EXPECT_EQ(error.code, DTRAIN_ERROR_MISMATCH) << error.message;
          EXPECT_THAT(error.message,
                      AllOf(HasSubstr("rank 4 for allreduce sum of " + std::to_string(other)),
                            HasSubstr("allreduce sum of 300 float32")));
        },
        false);
  }
}

TEST(CpuFailureTest, OneOfManyNodesThatDiesIsNamedOnAllRanks) {
  for (const size_t count : {size_t{10}, size_t{1000000}}) {
    const auto ends = RunCpuRanks(
        CpuSetup::Nodes(kManyNodes),
        [&](CpuCommunicator& communicator) {
          if (communicator.rank() == 4) raise(SIGKILL);
          const Error error = RunUntilFailure(communicator, count);
          EXPECT_EQ(error.code, DTRAIN_ERROR_NETWORK);
          // A rank that looks late may find others gone too, which left because of it.
          EXPECT_THAT(error.message,
                      AllOf(HasSubstr("lost the connection to rank "), HasSubstr("rank 4")));
        },
        false, {{4, -SIGKILL}});
    std::vector<int> expected(kManyNodes.size(), 0);
    expected[4] = -SIGKILL;
    EXPECT_EQ(ends, expected);
  }
}

TEST(CpuFailureTest, BroadcastRootsThatDifferAreFound) {
  RunCpuRanks(
      CpuSetup::OneNode(3),
      [](CpuCommunicator& communicator) {
        std::vector<float> data(3);
        Collective what = Allreduce(data, 0);
        what.kind = Kind::kBroadcast;
        what.root = communicator.rank();
        EXPECT_THAT(MustFail(communicator, what).message,
                    AllOf(HasSubstr("rank 0 for broadcast from rank 0"),
                          HasSubstr("rank 2 for broadcast from rank 2")));
      },
      false);
}

// M2: a rank that dies between collectives, or in one, is named by the others long before the
// timeout of a minute.
class CpuDeathTest : public testing::TestWithParam<std::tuple<size_t, int>> {};

TEST_P(CpuDeathTest, KilledRankIsNamedAtOnce) {
  const size_t count = std::get<0>(GetParam());
  const int victim = std::get<1>(GetParam());
  std::vector<CpuSetup> setups;
  std::map<int, int> ends;
  for (const auto& nodes : kLayouts) {
    ends[kRanksOfLayout * static_cast<int>(setups.size()) + victim] = -SIGKILL;
    setups.push_back(CpuSetup::Nodes(nodes));
  }
  const auto start = std::chrono::steady_clock::now();
  RunCpuRanksAtOnce(
      setups,
      [&](size_t, CpuCommunicator& communicator) {
        std::thread killer;
        if (communicator.rank() == victim) {
          // In the middle of whatever it does then.
          killer = std::thread([] {
            poll(nullptr, 0, 20);
            kill(getpid(), SIGKILL);
          });
        }
        const Error error = RunUntilFailure(communicator, count);
        EXPECT_EQ(error.code, DTRAIN_ERROR_NETWORK);
        EXPECT_THAT(error.message,
                    HasSubstr("lost the connection to rank " + std::to_string(victim)));
        if (killer.joinable()) killer.join();
      },
      ends);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kLong / 2) << "not by the timeout";
}

INSTANTIATE_TEST_SUITE_P(Sizes, CpuDeathTest,
                         testing::Combine(testing::Values(size_t{10}, size_t{30000},
                                                          size_t{3000000}),
                                          testing::Values(0, 1, 3)));

// M1: a stopped rank is named by the others when their time is over.
TEST(CpuFailureTest, StoppedRankIsNamedAtTheTimeout) {
  // A rank that comes later than this is named, too, and rightly: a busy machine has held one up
  // for longer than 300 ms.
  constexpr auto kLimit = std::chrono::seconds(3);
  std::vector<CpuSetup> setups;
  std::vector<int> victims;
  std::map<int, int> ends;
  for (const auto& nodes : kLayouts) {
    for (const int victim : {1, 3}) {
      ends[kRanksOfLayout * static_cast<int>(setups.size()) + victim] = -SIGKILL;
      setups.push_back(CpuSetup::Nodes(nodes));
      victims.push_back(victim);
    }
  }
  RunCpuRanksAtOnce(
      setups,
      [&](size_t setup, CpuCommunicator& communicator) {
        std::vector<float> data(1000);
        Spent spent;
        ASSERT_FALSE(communicator.Run(Allreduce(data, 0), kLong, spent));
        if (communicator.rank() == victims[setup]) raise(SIGSTOP);
        const Error error = MustFail(communicator, Allreduce(data, 1), kLimit);
        EXPECT_EQ(error.code, DTRAIN_ERROR_TIMEOUT);
        EXPECT_THAT(error.message, AllOf(HasSubstr("timed out waiting for "),
                                         HasSubstr("rank " + std::to_string(victims[setup]))));
      },
      ends);
}

TEST(CpuFailureTest, AbortEndsTheWaitOfAllRanksWithItsReason) {
  for (const auto& nodes : kLayouts) {
    for (const int from : {0, 3}) {
      RunCpuRanks(
          CpuSetup::Nodes(nodes),
          [&](CpuCommunicator& communicator) {
            std::vector<float> data(10);
            std::thread other;
            if (communicator.rank() == from) {
              // Rank 2 never comes; this rank's other thread gives up.
              other = std::thread([&] {
                poll(nullptr, 0, 10);
                communicator.Abort({DTRAIN_ERROR_NETWORK, "the watchdog says so"});
              });
            }
            Spent spent;
            MaybeError error;
            if (communicator.rank() == 2) {
              // Notices at its next collective, however late.
              Collective barrier;
              barrier.number = 1;
              while (!error) error = communicator.Run(barrier, kLong, spent);
            } else {
              error = communicator.Run(Allreduce(data, 0), kLong, spent);
            }
            if (other.joinable()) other.join();
            ASSERT_TRUE(error);
            // Rank 2's barrier may also have come before the reason.
            EXPECT_THAT(error->message, AnyOf(HasSubstr("the watchdog says so"),
                                              HasSubstr("do not ask for the same thing")))
                << "rank " << communicator.rank() << ", node "
                << nodes[static_cast<size_t>(communicator.rank())] << ", from rank " << from;
          },
          false);
    }
  }
}

// It leaves as soon as it sees the failure, which its other thread has yet to carry.
TEST(CpuFailureTest, ALeaderThatLeavesAtOnceTellsTheOtherNodesWhy) {
  for (int round = 0; round < 10; ++round) {
    RunCpuRanks(
        CpuSetup::Nodes({0, 1, 1}),
        [](CpuCommunicator& communicator) {
          if (communicator.rank() == 0) {
            std::vector<float> data(10);
            EXPECT_THAT(MustFail(communicator, Allreduce(data, 0)).message,
                        HasSubstr("the watchdog says so"));
            return;
          }
          if (communicator.rank() == 2) {
            communicator.Abort({DTRAIN_ERROR_NETWORK, "the watchdog says so"});
          }
          while (!communicator.failure()) sched_yield();
        },
        false);
  }
}

size_t Descriptors() {
  size_t n = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (readdir(dir) != nullptr) ++n;
  closedir(dir);
  return n;
}

// The rank that is the first to be done breaks the group at once.
TEST(CpuFailureTest, WhatAllTookPartInIsNotLostToAFailureAfterIt) {
  for (int round = 0; round < 10; ++round) {
    for (const auto& nodes : kLayouts) {
      RunCpuRanks(CpuSetup::Nodes(nodes), [&](CpuCommunicator& communicator) {
        std::vector<float> data(2, 1.0f);
        Spent spent;
        const MaybeError error = communicator.Run(Allreduce(data, 0), kLong, spent);
        communicator.Abort({DTRAIN_ERROR_INVALID_ARGUMENT, "enough"});
        EXPECT_FALSE(error) << "rank " << communicator.rank() << ": " << error->message;
        EXPECT_EQ(data, std::vector<float>(2, 4.0f));
        EXPECT_EQ(MustFail(communicator, Allreduce(data, 1)).message, "enough");
      });
    }
  }
}

TEST(CpuFailureTest, TenLivesLeaveNoDescriptorAndNameNoSharedMemory) {
  constexpr int kRanks = 4;
  for (const auto& nodes : {std::vector<int>{0, 0, 0, 0}, std::vector<int>{0, 1, 1, 0}}) {
    const CpuSetup setup = CpuSetup::Nodes(nodes);
    SharedTable table(kRanks);
    const auto ends = Ranks::Run(kRanks, [&](int rank) {
      TableBootstrap bootstrap(table, rank);
      size_t descriptors = 0;
      for (int life = 0; life < 10; ++life) {
        auto made =
            CpuCommunicator::Make(bootstrap, OptionsOf(setup), In(std::chrono::seconds(30)));
        ASSERT_TRUE(made.ok()) << made.error().message;
        std::vector<float> data(50000, 1.0f);
        Spent spent;
        ASSERT_FALSE((*made)->Run(Allreduce(data, 0), kLong, spent));
        EXPECT_EQ(data.back(), kRanks);
        EXPECT_THAT(NamedSharedMemory(), IsEmpty());
        ASSERT_TRUE(table.Meet(In(kLong)));
        made->reset();
        if (life == 0) descriptors = Descriptors();
      }
      EXPECT_EQ(Descriptors(), descriptors);
    });
    EXPECT_EQ(ends, std::vector<int>(kRanks, 0));
  }
}

// A group made from a part of the ranks, and its buffers in the job's arena.
TEST(CpuFailureTest, GroupsWorkBesideTheirJob) {
  const CpuSetup setup = CpuSetup::Nodes({0, 0, 1, 1});
  SharedTable all(4), left(2), right(2);
  const auto ends = Ranks::Run(4, [&](int rank) {
    TableBootstrap bootstrap(all, rank);
    CpuOptions options = OptionsOf(setup);
    auto world = CpuCommunicator::Make(bootstrap, options, In(std::chrono::seconds(30)));
    ASSERT_TRUE(world.ok()) << world.error().message;
    options.arena = (*world)->arena();
    options.node_of_rank = rank % 2 == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 0};
    // Ranks 0 and 2 on different nodes; ranks 3 and 1 too, the other way round.
    TableBootstrap part(rank % 2 == 0 ? left : right, rank % 2 == 0 ? rank / 2 : 1 - rank / 2);
    auto group = CpuCommunicator::Make(part, options, In(std::chrono::seconds(30)));
    ASSERT_TRUE(group.ok()) << group.error().message;
    std::vector<float> data(1000, static_cast<float>(rank));
    Spent spent;
    ASSERT_FALSE((*group)->Run(Allreduce(data, 0), kLong, spent));
    EXPECT_EQ(data[999], rank % 2 == 0 ? 2 : 4);
    ASSERT_FALSE((*world)->Run(Allreduce(data, 0), kLong, spent));
    EXPECT_EQ(data[999], 12);
    ASSERT_TRUE(all.Meet(In(kLong)));
  });
  EXPECT_EQ(ends, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace dtrain::runtime
