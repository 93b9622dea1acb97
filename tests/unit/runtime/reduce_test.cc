// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/base/types.h"
#include "runtime/reduce/reduce_all.h"

namespace dtrain::runtime {
namespace {

constexpr dtrain_type kTypes[] = {DTRAIN_INT32,    DTRAIN_INT64,   DTRAIN_FLOAT16,
                                  DTRAIN_BFLOAT16, DTRAIN_FLOAT32, DTRAIN_FLOAT64};
constexpr dtrain_op kOps[] = {DTRAIN_SUM, DTRAIN_AVG, DTRAIN_MIN, DTRAIN_MAX, DTRAIN_PROD};
constexpr size_t kCounts[] = {0, 1, 7, 16, 33, 1023, 1024, 1025, 5000};

size_t Width(dtrain_type type) {
  constexpr size_t widths[] = {4, 8, 2, 2, 4, 8};
  return widths[type];
}

std::vector<Vectors> Usable() {
  std::vector<Vectors> all = {Vectors::kBaseline};
  if (BestVectors() >= Vectors::kAvx2) all.push_back(Vectors::kAvx2);
  if (BestVectors() >= Vectors::kAvx512) all.push_back(Vectors::kAvx512);
  return all;
}

// Straight from the definition of binary16 and bfloat16, in doubles.
double SlowWiden(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

// The finite value of the format that is nearest, ties to even, by trying.
uint16_t SlowNarrow(float value, int exponent_bits) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const uint16_t infinity =
      static_cast<uint16_t>(((1 << exponent_bits) - 1) << (15 - exponent_bits));
  uint16_t low = 0;
  uint16_t high = infinity;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (SlowWiden(middle, exponent_bits) <= magnitude ? low : high) = middle;
  }
  // Infinity stands for the value that would follow the largest finite one.
  const double below = SlowWiden(low, exponent_bits);
  double above = SlowWiden(high, exponent_bits);
  if (high == infinity) {
    above = 2 * below - SlowWiden(static_cast<uint16_t>(low - 1), exponent_bits);
  }
  const double middle = (below + above) / 2;
  const bool up = magnitude > middle || (magnitude == middle && (low & 1) != 0);
  return sign | (up ? high : low);
}

template <typename T>
T Combine(dtrain_op op, T a, T b) {
  switch (op) {
    case DTRAIN_MIN:
      return b < a ? b : a;
    case DTRAIN_MAX:
      return a < b ? b : a;
    case DTRAIN_PROD:
      return static_cast<T>(a * b);
    default:
      return static_cast<T>(a + b);
  }
}

template <typename T>
T Element(const void* data, size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T, typename Acc>
void SlowReduceAs(void* out, const std::vector<const void*>& in, size_t n, dtrain_op op,
                  int divisor) {
  for (size_t i = 0; i < n; ++i) {
    Acc acc = static_cast<Acc>(Element<T>(in[0], i));
    for (size_t j = 1; j < in.size(); ++j) {
      acc = Combine<Acc>(op, acc, static_cast<Acc>(Element<T>(in[j], i)));
    }
    if constexpr (std::is_floating_point_v<Acc>) acc /= static_cast<Acc>(divisor);
    const T value = static_cast<T>(acc);
    std::memcpy(static_cast<char*>(out) + i * sizeof(T), &value, sizeof(T));
  }
}

void SlowReduceHalf(void* out, const std::vector<const void*>& in, size_t n, dtrain_op op,
                    int divisor, int exponent_bits) {
  for (size_t i = 0; i < n; ++i) {
    const auto wide = [&](size_t j) {
      return static_cast<float>(SlowWiden(Element<uint16_t>(in[j], i), exponent_bits));
    };
    float acc = wide(0);
    for (size_t j = 1; j < in.size(); ++j) acc = Combine(op, acc, wide(j));
    acc /= static_cast<float>(divisor);
    const uint16_t value = SlowNarrow(acc, exponent_bits);
    std::memcpy(static_cast<char*>(out) + i * 2, &value, 2);
  }
}

void SlowReduce(void* out, const std::vector<const void*>& in, size_t n, dtrain_type type,
                dtrain_op op, int divisor) {
  switch (type) {
    case DTRAIN_INT32:
      if (op == DTRAIN_MIN || op == DTRAIN_MAX) {
        return SlowReduceAs<int32_t, int32_t>(out, in, n, op, 1);
      }
      return SlowReduceAs<uint32_t, uint32_t>(out, in, n, op, 1);
    case DTRAIN_INT64:
      if (op == DTRAIN_MIN || op == DTRAIN_MAX) {
        return SlowReduceAs<int64_t, int64_t>(out, in, n, op, 1);
      }
      return SlowReduceAs<uint64_t, uint64_t>(out, in, n, op, 1);
    case DTRAIN_FLOAT16:
      return SlowReduceHalf(out, in, n, op, divisor, 5);
    case DTRAIN_BFLOAT16:
      return SlowReduceHalf(out, in, n, op, divisor, 8);
    case DTRAIN_FLOAT32:
      return SlowReduceAs<float, float>(out, in, n, op, divisor);
    case DTRAIN_FLOAT64:
      return SlowReduceAs<double, double>(out, in, n, op, divisor);
    case DTRAIN_BYTE:
      break;  // is not reduced
  }
}

// Bits that are no NaN and whose sums are not either: any integer, any float of moderate size.
void Fill(std::vector<char>& data, size_t at, size_t n, dtrain_type type, std::mt19937& random) {
  std::normal_distribution<double> normal(0, 3);
  for (size_t i = 0; i < n; ++i) {
    char* to = data.data() + at + i * Width(type);
    const auto put = [&](auto value) { std::memcpy(to, &value, sizeof(value)); };
    if (type == DTRAIN_INT32) put(static_cast<uint32_t>(random()));
    if (type == DTRAIN_INT64) put((uint64_t{random()} << 32) | random());
    if (type == DTRAIN_FLOAT16) put(SlowNarrow(static_cast<float>(normal(random)), 5));
    if (type == DTRAIN_BFLOAT16) put(SlowNarrow(static_cast<float>(normal(random)), 8));
    if (type == DTRAIN_FLOAT32) put(static_cast<float>(normal(random)));
    if (type == DTRAIN_FLOAT64) put(normal(random));
  }
}

std::string Case(dtrain_type type, dtrain_op op, size_t n, int k) {
  return std::string(TypeName(type)) + " " + OpName(op) + " n=" + std::to_string(n) +
         " k=" + std::to_string(k);
}

void CheckAgainstReference(dtrain_type type, dtrain_op op, size_t n, int k, std::mt19937& random) {
  const size_t offset = random() % 3;  // of any alignment
  const size_t bytes = n * Width(type);
  std::vector<std::vector<char>> buffers(static_cast<size_t>(k));
  std::vector<const void*> inputs;
  for (auto& buffer : buffers) {
    buffer.resize(bytes + 64);
    Fill(buffer, offset, n, type, random);
    inputs.push_back(buffer.data() + offset);
  }
  const int divisor = op == DTRAIN_AVG && type != DTRAIN_INT32 && type != DTRAIN_INT64 ? k : 1;
  std::vector<char> expected(bytes + 1);  // never null
  SlowReduce(expected.data(), inputs, n, type, op, divisor);
  for (const Vectors vectors : Usable()) {
    std::vector<char> output(bytes + 64, 'x');
    ReduceAllWith(vectors, output.data() + 1, inputs.data(), k, n, type, op, divisor);
    EXPECT_EQ(std::memcmp(output.data() + 1, expected.data(), bytes), 0)
        << Case(type, op, n, k) << " variant " << static_cast<int>(vectors);
    EXPECT_EQ(output[0], 'x');
    EXPECT_EQ(output[bytes + 1], 'x') << "nothing is written behind the last element";
  }
  for (const auto& buffer : buffers) {  // in place, whichever input it is
    auto copies = buffers;
    std::vector<const void*> from;
    for (auto& copy : copies) from.push_back(copy.data() + offset);
    char* output = copies[static_cast<size_t>(&buffer - buffers.data())].data() + offset;
    ReduceAll(output, from.data(), k, n, type, op, divisor);
    EXPECT_EQ(std::memcmp(output, expected.data(), bytes), 0) << Case(type, op, n, k);
  }
}

TEST(ReduceTest, EveryVariantGivesTheBitsOfTheScalarReference) {
  std::mt19937 random(1);
  for (const dtrain_type type : kTypes) {
    for (const dtrain_op op : kOps) {
      for (const size_t n : kCounts) {
        for (const int k : {1, 2, 3, 5}) CheckAgainstReference(type, op, n, k, random);
      }
    }
  }
}

TEST(ReduceTest, ReferenceIsNotJustWhateverComesOut) {  // canary
  const float a[] = {1, 2};
  const float b[] = {3, 5};
  const void* inputs[] = {a, b};
  float out[2];
  ReduceAll(out, inputs, 2, 2, DTRAIN_FLOAT32, DTRAIN_SUM, 2);
  EXPECT_EQ(out[0], 2);
  EXPECT_EQ(out[1], 3.5);
  const uint16_t half = 0x3c00;  // 1
  const void* halves[] = {&half, &half};
  uint16_t sum = 0;
  ReduceAll(&sum, halves, 2, 1, DTRAIN_FLOAT16, DTRAIN_SUM, 1);
  EXPECT_EQ(sum, 0x4000);
  EXPECT_EQ(SlowNarrow(2.0f, 5), 0x4000);
  EXPECT_EQ(SlowNarrow(70000.0f, 5), 0x7c00);
  EXPECT_EQ(SlowNarrow(1.0f, 8), 0x3f80);
}

TEST(ReduceTest, EveryHalfAndEveryRoundingOfOneIsExact) {
  for (const Vectors vectors : Usable()) {
    for (const auto& [type, exponent_bits] :
         {std::pair{DTRAIN_FLOAT16, 5}, std::pair{DTRAIN_BFLOAT16, 8}}) {
      std::vector<uint16_t> all(65536), out(65536), ones(65536);
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
      const void* single[] = {all.data()};
      ReduceAllWith(vectors, out.data(), single, 1, all.size(), type, DTRAIN_SUM, 1);
      // Added to its neighbour times a third, so that every exponent meets odd remainders.
      std::vector<uint16_t> sums(65536);
      for (size_t i = 0; i < ones.size(); ++i) ones[i] = all[(i * 7919 + 13) % 65536];
      const void* both[] = {all.data(), ones.data()};
      ReduceAllWith(vectors, sums.data(), both, 2, all.size(), type, DTRAIN_AVG, 3);
      for (size_t i = 0; i < all.size(); ++i) {
        const double a = SlowWiden(all[i], exponent_bits);
        const double b = SlowWiden(ones[i], exponent_bits);
        ASSERT_TRUE(std::isnan(a) || out[i] == all[i]) << all[i];
        const float sum = (static_cast<float>(a) + static_cast<float>(b)) / 3.0f;
        if (std::isnan(sum)) {
          EXPECT_TRUE(std::isnan(SlowWiden(sums[i], exponent_bits)));
        } else {
          ASSERT_EQ(sums[i], SlowNarrow(sum, exponent_bits)) << all[i] << " + " << ones[i];
        }
      }
    }
  }
}

// (a + b) + c is not a + (b + c) for these, in any of the types: the order is that of the inputs.
TEST(ReduceTest, EveryVariantCopiesAllBytesAndNoOthers) {
  std::vector<char> from(5000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(1 + i % 101);
  for (const Vectors vectors : Usable()) {
    for (const size_t bytes : {0, 1, 63, 64, 65, 255, 256, 511, 512, 513, 576, 640, 1000, 4096}) {
      for (size_t to_at = 0; to_at < 70; to_at += 3) {
        const size_t from_at = to_at * 7 % 130;
        std::vector<char> to(to_at + bytes + 80, 0);
        CopyBytesWith(vectors, to.data() + to_at, from.data() + from_at, bytes);
        std::vector<char> expected(to.size(), 0);
        if (bytes > 0) std::memcpy(expected.data() + to_at, from.data() + from_at, bytes);
        ASSERT_EQ(to, expected) << bytes << " bytes to " << to_at;
      }
    }
  }
}

TEST(ReduceTest, ADivisorNeedNotBeWhole) {
  const uint16_t large[] = {0x78e2}, half_as_large[] = {0x74e2};  // 40000 and 20000
  const void* halves[] = {large, large, half_as_large};
  const double value = 3;
  const void* single[] = {&value};
  for (const Vectors vectors : Usable()) {
    uint16_t out = 0;
    ReduceAllWith(vectors, &out, halves, 3, 1, DTRAIN_FLOAT16, DTRAIN_AVG, 2.5);
    EXPECT_EQ(out, 0x78e2);
    double quotient = 0;
    ReduceAllWith(vectors, &quotient, single, 1, 1, DTRAIN_FLOAT64, DTRAIN_AVG, 1.5);
    EXPECT_EQ(quotient, 2);
  }
}

TEST(ReduceTest, InputsAreAddedFromTheFirstToTheLast) {
  const float big[] = {1e8f}, minus[] = {-1e8f}, one[] = {1};
  const void* first[] = {big, minus, one};
  const void* last[] = {one, big, minus};
  for (const Vectors vectors : Usable()) {
    float out = -1;
    ReduceAllWith(vectors, &out, first, 3, 1, DTRAIN_FLOAT32, DTRAIN_SUM, 1);
    EXPECT_EQ(out, 1);
    ReduceAllWith(vectors, &out, last, 3, 1, DTRAIN_FLOAT32, DTRAIN_SUM, 1);
    EXPECT_EQ(out, 0);
  }
}

}  // namespace
}  // namespace dtrain::runtime
