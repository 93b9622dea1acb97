// SPDX-License-Identifier: Apache-2.0
// All-to-alls whose blocks differ in length.
#include <algorithm>
#include <cstdint>
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

void Exchange(const Counts& counts, size_t rank, size_t size, bool shared) {
  std::vector<int32_t> input = Input(counts, size, rank), output(Output(counts, size, rank).size());
  int32_t* from = input.data();
  void* memory = nullptr;
  if (shared && !input.empty()) {
    ASSERT_EQ(dtrain_alloc(input.size() * sizeof(int32_t), &memory), DTRAIN_OK);
    from = static_cast<int32_t*>(memory);
    std::copy(input.begin(), input.end(), from);
  }
  dtrain_handle handle = 0;
  ASSERT_EQ(
      dtrain_alltoallv_async(from, output.data(), counts.data(), DTRAIN_INT32, nullptr, &handle),
      DTRAIN_OK)
      << dtrain_last_error();
  ASSERT_EQ(dtrain_wait(handle), DTRAIN_OK) << dtrain_last_error();
  EXPECT_TRUE(output == Output(counts, size, rank));
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

TEST(UnequalTest, LengthsThatDifferAreAMismatchAndBadOnesAreRefused) {
  const auto body = [](int rank) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    int32_t input[6] = {1, 2, 3, 4, 5, 6}, output[6] = {};
    dtrain_handle handle = 0;
    const auto start = [&](const void* from, void* to, const Counts& counts) {
      return dtrain_alltoallv_async(from, to, counts.data(), DTRAIN_INT32, nullptr, &handle);
    };
    const auto bad = DTRAIN_ERROR_INVALID_ARGUMENT;
    EXPECT_EQ(dtrain_alltoallv_async(input, output, nullptr, DTRAIN_INT32, nullptr, &handle), bad);
    EXPECT_EQ(start(input, input + 1, {1, 2, 2, 1}), bad);
    EXPECT_THAT(dtrain_last_error(), HasSubstr("overlap"));
    EXPECT_EQ(start(nullptr, output, {1, 1, 1, 1}), bad);
    EXPECT_EQ(start(input, nullptr, {1, 1, 1, 1}), bad);
    EXPECT_EQ(start(input, output, {UINT64_MAX, 0, 0, 0}), bad);
    // The same for this rank's buffers, and the same most.
    const uint64_t other = rank == 0 ? 1 : 2;
    ASSERT_EQ(start(input, output, rank == 0 ? Counts{3, 1, 1, other} : Counts{other, 1, 1, 3}),
              DTRAIN_OK);
    EXPECT_EQ(dtrain_wait(handle), DTRAIN_ERROR_MISMATCH);
    EXPECT_THAT(dtrain_last_error(),
                AllOf(HasSubstr("rank 0 for all-to-all of 3 int32 of shape unequal blocks #"),
                      HasSubstr("; rank 1 for all-to-all of 3 int32")));
    EXPECT_EQ(output[0], 0) << "what is refused is not touched";
    ASSERT_EQ(start(rank == 0 ? nullptr : input, rank == 0 ? output : nullptr, {0, 0, 2, 0}),
              DTRAIN_OK)
        << "what has no elements needs no buffer";
    EXPECT_EQ(dtrain_wait(handle), DTRAIN_OK);
    EXPECT_EQ(output[1], rank == 0 ? 2 : 0);
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  };
  EXPECT_EQ(Ranks::Run(2, body, On(std::nullopt)), std::vector<int>(2, 0));
}

}  // namespace
}  // namespace dtrain::runtime
