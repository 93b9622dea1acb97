// SPDX-License-Identifier: Apache-2.0
// All-to-alls whose blocks differ in length.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "dtrain/dtrain.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/component/runtime/ranks.h"

namespace dtrain::runtime {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Counts = std::vector<uint64_t>;

// Different for every element of every block.
int32_t Value(size_t from, size_t to, uint64_t i) {
  return static_cast<int32_t>(from * 1000003 + to * 10007 + i);
}

// The blocks from one rank for all others, or for one rank from all others.
std::vector<int32_t> Input(const Counts& counts, size_t size, size_t rank) {
  std::vector<int32_t> values;
  for (size_t to = 0; to < size; ++to) {
    for (uint64_t i = 0; i < counts[rank * size + to]; ++i) values.push_back(Value(rank, to, i));
  }
  return values;
}
std::vector<int32_t> Output(const Counts& counts, size_t size, size_t rank) {
  std::vector<int32_t> values;
  for (size_t from = 0; from < size; ++from) {
    for (uint64_t i = 0; i < counts[from * size + rank]; ++i) {
      values.push_back(Value(from, rank, i));
    }
  }
  return values;
}

// Gives memory for what comes, and keeps how many rows that are.
struct Room {
  explicit Room(size_t ranks) : ranks(ranks) {}
  static void* Give(void* context, const uint64_t* rows) {
    auto& self = *static_cast<Room*>(context);
    self.rows.assign(rows, rows + self.ranks);
    if (self.refuses) return nullptr;
    self.values.resize(std::accumulate(rows, rows + self.ranks, uint64_t{0}) * self.length, -1);
    return self.values.data();
  }
  const size_t ranks;
  size_t length = 1;
  bool refuses = false;
  Counts rows;
  std::vector<int32_t> values;
};

void Exchange(const Counts& counts, size_t rank, size_t size, bool shared) {
  std::vector<int32_t> input = Input(counts, size, rank);
  int32_t* from = input.data();
  void* memory = nullptr;
  if (shared && !input.empty()) {
    ASSERT_EQ(dtrain_alloc(input.size() * sizeof(int32_t), &memory), DTRAIN_OK);
    from = static_cast<int32_t*>(memory);
    std::copy(input.begin(), input.end(), from);
  }
  Room room(size), all(size);
  dtrain_handle handle = 0, gathered = 0;
  ASSERT_EQ(dtrain_alltoallv_async(from, &counts[rank * size], 1, DTRAIN_INT32, Room::Give, &room,
                                   nullptr, &handle),
            DTRAIN_OK)
      << dtrain_last_error();
  // All of it as rows of three for everybody.
  all.length = 3;
  ASSERT_EQ(dtrain_allgatherv_async(from, input.size() / 3, 3, DTRAIN_INT32, Room::Give, &all,
                                    nullptr, &gathered),
            DTRAIN_OK)
      << dtrain_last_error();
  ASSERT_EQ(dtrain_wait(handle), DTRAIN_OK) << dtrain_last_error();
  ASSERT_EQ(dtrain_wait(gathered), DTRAIN_OK) << dtrain_last_error();
  EXPECT_TRUE(room.values == Output(counts, size, rank));
  std::vector<int32_t> everyones;
  for (size_t r = 0; r < size; ++r) {
    EXPECT_EQ(room.rows[r], counts[r * size + rank]);
    const std::vector<int32_t> part = Input(counts, size, r);
    EXPECT_EQ(all.rows[r], part.size() / 3);
    everyones.insert(everyones.end(), part.begin(),
                     part.begin() + static_cast<std::ptrdiff_t>(part.size() / 3 * 3));
  }
  EXPECT_TRUE(all.values == everyones);
  EXPECT_TRUE(std::equal(input.begin(), input.end(), from)) << "the input was changed";
  EXPECT_EQ(dtrain_barrier(), DTRAIN_OK);
  EXPECT_EQ(dtrain_free(memory), DTRAIN_OK);
}

// Small blocks go through slots, or with greetings; large ones are read where they are, or go
// between nodes in several chunks.
void ManyLengths(int rank, int size) {
  ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
  std::mt19937 random(7);  // the same on all ranks
  const auto n = static_cast<size_t>(size);
  for (const uint64_t most : {0u, 1u, 9u, 3000u, 40'000u, 1'500'000u}) {
    for (int turn = 0; turn < 3; ++turn) {
      Counts counts(n * n);
      for (uint64_t& count : counts) {
        // In the last turn a single block has it all.
        count = turn == 2 ? 0 : std::uniform_int_distribution<uint64_t>(0, most / n)(random);
      }
      counts[random() % counts.size()] = most;
      Exchange(counts, static_cast<size_t>(rank), n, turn == 1);
    }
  }
  EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
}

RanksOptions On(std::optional<std::string> mapping) {
  RanksOptions options;
  options.mapping = std::move(mapping);
  options.environment = {{"DTRAIN_COLLECTIVE_TIMEOUT_SECONDS", "40"}};
  return options;
}

void RunsOn(int size, std::optional<std::string> mapping) {
  const auto body = [=](int rank) { ManyLengths(rank, size); };
  EXPECT_EQ(Ranks::Run(size, body, On(std::move(mapping))),
            std::vector<int>(static_cast<size_t>(size), 0));
}

TEST(UnequalTest, OnOneNode) {
  for (const int size : {1, 2, 3}) RunsOn(size, std::nullopt);
}

TEST(UnequalTest, BetweenNodesOfOneRank) { RunsOn(3, "(vector,(0,3,1))"); }

TEST(UnequalTest, BetweenNodesOfDifferentSizes) { RunsOn(5, "(vector,(0,2,1),(0,1,1),(2,1,2))"); }

TEST(UnequalTest, RowsThatDifferInLengthOrTypeAreAMismatchAndBadOnesAreRefused) {
  const auto body = [](int rank) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    int32_t input[6] = {1, 2, 3, 4, 5, 6};
    dtrain_handle handle = 0;
    Room room(2);
    const auto deal = [&](const void* from, const Counts& rows, size_t length = 1) {
      room.length = length;
      return dtrain_alltoallv_async(from, rows.data(), length, DTRAIN_INT32, Room::Give, &room,
                                    nullptr, &handle);
    };
    const auto bad = DTRAIN_ERROR_INVALID_ARGUMENT;
    EXPECT_EQ(dtrain_alltoallv_async(input, nullptr, 1, DTRAIN_INT32, Room::Give, &room, nullptr,
                                     &handle),
              bad);
    EXPECT_EQ(
        dtrain_allgatherv_async(input, 1, 1, DTRAIN_INT32, nullptr, nullptr, nullptr, &handle),
        bad);
    EXPECT_THAT(dtrain_last_error(), HasSubstr("allocate is NULL"));
    EXPECT_EQ(deal(nullptr, {1, 1}), bad);
    EXPECT_EQ(deal(input, {UINT64_MAX, 0}), bad);
    EXPECT_EQ(deal(input, {UINT64_MAX / 2, UINT64_MAX / 2 + 2}), bad);
    EXPECT_EQ(deal(input, {1, 1}, SIZE_MAX / 2), bad);
    ASSERT_EQ(deal(input, {1, 1}, rank == 0 ? 2 : 3), DTRAIN_OK);
    EXPECT_EQ(dtrain_wait(handle), DTRAIN_ERROR_MISMATCH);
    EXPECT_THAT(dtrain_last_error(),
                AllOf(HasSubstr("(all-to-all of any number of rows)"),
                      HasSubstr("rank 0 for all-to-all of any number of rows of 2 int32; rank 1 "
                                "for all-to-all of any number of rows of 3 int32")));
    EXPECT_TRUE(room.rows.empty()) << "nobody is asked for memory for what is refused";
    // Nor is it a collective of equal lengths.
    int32_t output[2] = {};
    ASSERT_EQ(rank == 0 ? dtrain_allgather_async(input, output, 0, DTRAIN_INT32, nullptr, &handle)
                        : dtrain_allgatherv_async(input, 0, 1, DTRAIN_INT32, Room::Give, &room,
                                                  nullptr, &handle),
              DTRAIN_OK);
    EXPECT_EQ(dtrain_wait(handle), DTRAIN_ERROR_MISMATCH);
    ASSERT_EQ(deal(rank == 0 ? nullptr : input, {rank == 0 ? 0u : 2u, 0}), DTRAIN_OK)
        << "what has no elements needs no buffer";
    EXPECT_EQ(dtrain_wait(handle), DTRAIN_OK);
    EXPECT_EQ(room.rows, (rank == 0 ? Counts{0, 2} : Counts{0, 0}));
    EXPECT_EQ(room.values, (rank == 0 ? std::vector<int32_t>{1, 2} : std::vector<int32_t>{}));
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  };
  EXPECT_EQ(Ranks::Run(2, body, On(std::nullopt)), std::vector<int>(2, 0));
}

// Though it stays in the job.
TEST(UnequalTest, WhoHasNoMemoryForWhatComesEndsTheJob) {
  int done[2];
  ASSERT_EQ(pipe(done), 0);
  const auto body = [&](int rank) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    const int32_t input[2] = {1, 2};
    Room room(2);
    room.refuses = rank == 1;
    dtrain_handle handle = 0;
    ASSERT_EQ(dtrain_allgatherv_async(input, 1 + static_cast<uint64_t>(rank), 1, DTRAIN_INT32,
                                      Room::Give, &room, nullptr, &handle),
              DTRAIN_OK);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_NE(dtrain_wait(handle), DTRAIN_OK);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    EXPECT_THAT(dtrain_last_error(), AllOf(HasSubstr("rank 1 of 2, collective 0"),
                                           HasSubstr("no memory for the 12 bytes of all ranks'")));
    EXPECT_EQ(room.rows, (Counts{1, 2}));
    char byte = 0;
    EXPECT_EQ(rank == 0 ? write(done[1], &byte, 1) : read(done[0], &byte, 1), 1);
    (void)dtrain_finalize();
  };
  EXPECT_EQ(Ranks::Run(2, body, On(std::nullopt)), std::vector<int>(2, 0));
  close(done[0]);
  close(done[1]);
}

TEST(UnequalTest, NobodyIsAskedForMemoryWhenTheProgramEnds) {
  const auto body = [](int rank) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    if (rank == 1) dtrain_abandon();
    const int32_t input[1] = {1};
    Room room(2);
    dtrain_handle handle = 0;
    ASSERT_EQ(
        dtrain_allgatherv_async(input, 1, 1, DTRAIN_INT32, Room::Give, &room, nullptr, &handle),
        DTRAIN_OK);
    EXPECT_NE(dtrain_wait(handle), DTRAIN_OK);
    if (rank == 1) {
      EXPECT_TRUE(room.rows.empty());
    }
  };
  RanksOptions options = On(std::nullopt);
  EXPECT_EQ(Ranks::Run(2, body, std::move(options)), std::vector<int>(2, 0));
}

}  // namespace
}  // namespace dtrain::runtime
