// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <vector>

#include "dtrain/dtrain.h"
#include "gtest/gtest.h"
#include "tests/component/runtime/ranks.h"

namespace dtrain::runtime {
namespace {

constexpr size_t kCounts[] = {1, 2, 3, 5, 16, 1000, 4097, 100003};

template <typename T>
constexpr dtrain_type kType = DTRAIN_INT32;
template <>
constexpr dtrain_type kType<int64_t> = DTRAIN_INT64;
template <>
constexpr dtrain_type kType<float> = DTRAIN_FLOAT32;
template <>
constexpr dtrain_type kType<double> = DTRAIN_FLOAT64;

// Small whole numbers: every type computes with them exactly. None is 0, and their products fit.
template <typename T>
T Value(size_t i, int rank) {
  return static_cast<T>(static_cast<int64_t>((i * 31 + static_cast<size_t>(rank) * 17) % 13) - 15);
}

template <typename T>
T Expected(size_t i, dtrain_op op) {
  T all = Value<T>(i, 0);
  for (int r = 1; r < dtrain_size(); ++r) {
    const T next = Value<T>(i, r);
    if (op == DTRAIN_SUM || op == DTRAIN_AVG) all += next;
    if (op == DTRAIN_PROD) all *= next;
    if (op == DTRAIN_MIN) all = std::min(all, next);
    if (op == DTRAIN_MAX) all = std::max(all, next);
  }
  return op == DTRAIN_AVG ? all / static_cast<T>(dtrain_size()) : all;
}

template <typename T>
std::vector<T> Values(size_t count, int rank) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value<T>(i, rank);
  return values;
}

template <typename T>
void CheckAllreduce(size_t count, dtrain_op op, bool in_place) {
  const std::vector<T> input = Values<T>(count, dtrain_rank());
  std::vector<T> expected(count);
  for (size_t i = 0; i < count; ++i) expected[i] = Expected<T>(i, op);
  std::vector<T> output = in_place ? input : std::vector<T>(count, T{77});
  const T* from = in_place ? output.data() : input.data();
  ASSERT_EQ(dtrain_allreduce(from, output.data(), count, kType<T>, op), DTRAIN_OK)
      << dtrain_last_error();
  EXPECT_EQ(output, expected) << count << " elements, op " << op << ", in place " << in_place;
  EXPECT_EQ(input, Values<T>(count, dtrain_rank())) << "the input was written to";
}

template <typename T>
void CheckAllreduces() {
  for (const size_t count : kCounts) {
    for (const dtrain_op op : {DTRAIN_SUM, DTRAIN_MIN, DTRAIN_MAX, DTRAIN_PROD, DTRAIN_AVG}) {
      if (op == DTRAIN_AVG && std::numeric_limits<T>::is_integer) continue;
      CheckAllreduce<T>(count, op, false);
      CheckAllreduce<T>(count, op, true);
    }
  }
}

template <typename T>
void CheckBroadcasts() {
  for (const size_t count : kCounts) {
    for (int root = 0; root < dtrain_size(); ++root) {
      std::vector<T> data = Values<T>(count, dtrain_rank());
      ASSERT_EQ(dtrain_broadcast(data.data(), count, kType<T>, root), DTRAIN_OK)
          << dtrain_last_error();
      EXPECT_EQ(data, Values<T>(count, root)) << count << " elements from " << root;
    }
  }
}

template <typename T>
void CheckAllgathers() {
  const auto ranks = static_cast<size_t>(dtrain_size());
  const auto rank = static_cast<size_t>(dtrain_rank());
  for (const size_t count : kCounts) {
    std::vector<T> expected;
    for (int r = 0; r < dtrain_size(); ++r) {
      const std::vector<T> part = Values<T>(count, r);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    const std::vector<T> input = Values<T>(count, dtrain_rank());
    std::vector<T> output(count * ranks, T{77});
    ASSERT_EQ(dtrain_allgather(input.data(), output.data(), count, kType<T>), DTRAIN_OK)
        << dtrain_last_error();
    EXPECT_EQ(output, expected) << count << " elements";

    std::vector<T> both(count * ranks, T{77});
    T* own = both.data() + rank * count;
    std::copy(input.begin(), input.end(), own);
    ASSERT_EQ(dtrain_allgather(own, both.data(), count, kType<T>), DTRAIN_OK);
    EXPECT_EQ(both, expected) << count << " elements in place";
  }
}

// Block b of what rank `rank` gives to operations that work by blocks.
template <typename T>
std::vector<T> Blocks(size_t count, int rank) {
  return Values<T>(count * static_cast<size_t>(dtrain_size()), rank);
}

template <typename T>
void CheckReduceScatter(size_t count, dtrain_op op) {
  const auto mine = static_cast<size_t>(dtrain_rank()) * count;
  std::vector<T> input = Blocks<T>(count, dtrain_rank());
  std::vector<T> expected(count);
  for (size_t i = 0; i < count; ++i) expected[i] = Expected<T>(mine + i, op);
  std::vector<T> output(count, T{77});
  ASSERT_EQ(dtrain_reduce_scatter(input.data(), output.data(), count, kType<T>, op), DTRAIN_OK)
      << dtrain_last_error();
  EXPECT_EQ(output, expected) << count << " elements, op " << op;
  EXPECT_EQ(input, Blocks<T>(count, dtrain_rank())) << "the input was written to";
  ASSERT_EQ(dtrain_reduce_scatter(input.data(), input.data() + mine, count, kType<T>, op),
            DTRAIN_OK);
  EXPECT_EQ(std::vector<T>(input.begin() + static_cast<ptrdiff_t>(mine),
                           input.begin() + static_cast<ptrdiff_t>(mine + count)),
            expected)
      << count << " elements in place, op " << op;
}

template <typename T>
void CheckAlltoall(size_t count) {
  const auto mine = static_cast<size_t>(dtrain_rank()) * count;
  const std::vector<T> input = Blocks<T>(count, dtrain_rank());
  std::vector<T> expected;
  for (int r = 0; r < dtrain_size(); ++r) {
    for (size_t i = 0; i < count; ++i) expected.push_back(Value<T>(mine + i, r));
  }
  std::vector<T> output(input.size(), T{77});
  ASSERT_EQ(dtrain_alltoall(input.data(), output.data(), count, kType<T>), DTRAIN_OK)
      << dtrain_last_error();
  EXPECT_EQ(output, expected) << count << " elements";
  std::vector<T> both = input;
  ASSERT_EQ(dtrain_alltoall(both.data(), both.data(), count, kType<T>), DTRAIN_OK);
  EXPECT_EQ(both, expected) << count << " elements in place";
}

template <typename T>
void CheckReduce(size_t count, dtrain_op op, int root) {
  const bool is_root = dtrain_rank() == root;
  const std::vector<T> input = Values<T>(count, dtrain_rank());
  std::vector<T> expected(count);
  for (size_t i = 0; i < count; ++i) expected[i] = Expected<T>(i, op);
  std::vector<T> output(count, T{77});
  ASSERT_EQ(
      dtrain_reduce(input.data(), is_root ? output.data() : nullptr, count, kType<T>, op, root),
      DTRAIN_OK)
      << dtrain_last_error();
  if (is_root) {
    EXPECT_EQ(output, expected) << count << " elements to " << root;
  }
  std::vector<T> both = input;
  ASSERT_EQ(dtrain_reduce(both.data(), both.data(), count, kType<T>, op, root), DTRAIN_OK);
  if (is_root) {
    EXPECT_EQ(both, expected) << count << " elements in place to " << root;
  }
}

template <typename T>
void CheckBlocks() {
  for (const size_t count : {size_t{1}, size_t{3}, size_t{1000}, size_t{40009}}) {
    CheckAlltoall<T>(count);
    for (const dtrain_op op : {DTRAIN_SUM, DTRAIN_MIN, DTRAIN_AVG}) {
      if (op == DTRAIN_AVG && std::numeric_limits<T>::is_integer) continue;
      CheckReduceScatter<T>(count, op);
      CheckReduce<T>(count, op, dtrain_size() - 1);
      CheckReduce<T>(count, op, 0);
    }
  }
}

template <typename T>
void CheckType() {
  CheckAllreduces<T>();
  CheckBroadcasts<T>();
  CheckAllgathers<T>();
  CheckBlocks<T>();
}

class CollectivesTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesTest, testing::Values(1, 2, 3, 4));

void CheckAllTypes(int) {
  ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
  CheckType<int32_t>();
  CheckType<int64_t>();
  CheckType<float>();
  CheckType<double>();
  EXPECT_EQ(dtrain_barrier(), DTRAIN_OK);
  EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
}

TEST_P(CollectivesTest, GiveTheSerialResultForAllTypesOperationsAndSizes) {
  EXPECT_EQ(Ranks::Run(GetParam(), CheckAllTypes),
            std::vector<int>(static_cast<size_t>(GetParam()), 0));
}

TEST_P(CollectivesTest, WrapIntegerOverflowAround) {
  Ranks::Run(GetParam(), [](int) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    int32_t value = std::numeric_limits<int32_t>::max();
    ASSERT_EQ(dtrain_allreduce(&value, &value, 1, DTRAIN_INT32, DTRAIN_SUM), DTRAIN_OK);
    const auto expected = static_cast<uint32_t>(std::numeric_limits<int32_t>::max()) *
                          static_cast<uint32_t>(dtrain_size());
    EXPECT_EQ(static_cast<uint32_t>(value), expected);
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  });
}

TEST_P(CollectivesTest, GiveEveryRankTheSameBits) {
  Ranks::Run(GetParam(), [](int rank) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    std::vector<float> values(5003);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = 1.0f / static_cast<float>(i + 3 * static_cast<size_t>(rank) + 1);  // inexact sums
    }
    ASSERT_EQ(
        dtrain_allreduce(values.data(), values.data(), values.size(), DTRAIN_FLOAT32, DTRAIN_SUM),
        DTRAIN_OK);
    std::vector<float> of_rank_0 = values;
    ASSERT_EQ(dtrain_broadcast(of_rank_0.data(), values.size(), DTRAIN_FLOAT32, 0), DTRAIN_OK);
    EXPECT_EQ(values, of_rank_0);
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  });
}

TEST_P(CollectivesTest, AcceptCountZeroAndNullBuffersThen) {
  Ranks::Run(GetParam(), [](int) {
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    EXPECT_EQ(dtrain_allreduce(nullptr, nullptr, 0, DTRAIN_INT64, DTRAIN_MAX), DTRAIN_OK);
    EXPECT_EQ(dtrain_broadcast(nullptr, 0, DTRAIN_INT64, 0), DTRAIN_OK);
    EXPECT_EQ(dtrain_allgather(nullptr, nullptr, 0, DTRAIN_FLOAT32), DTRAIN_OK);
    CheckAllreduce<int32_t>(7, DTRAIN_SUM, true);
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  });
}

}  // namespace
}  // namespace dtrain::runtime
