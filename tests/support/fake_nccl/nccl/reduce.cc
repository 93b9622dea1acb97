// SPDX-License-Identifier: Apache-2.0
// Arithmetic.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "tests/support/fake_nccl/nccl/operation.h"

namespace fake_nccl {
namespace {

float FromHalf(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 31, fraction = bits & 0x3ff;
  if (exponent == 0) {
    const float tiny = static_cast<float>(fraction) / 16777216.0f;
    return sign != 0 ? -tiny : tiny;
  }
  const uint32_t wide = sign | ((exponent == 31 ? 255 : exponent + 112) << 23) | (fraction << 13);
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Truncates; the tests use numbers that need no rounding.
uint16_t ToHalf(float value) {
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof(wide));
  const auto sign = static_cast<uint16_t>((wide >> 16) & 0x8000);
  const int exponent = static_cast<int>((wide >> 23) & 255) - 112;
  if (exponent <= 0) return sign;
  if (exponent >= 31) return static_cast<uint16_t>(sign | 0x7c00);
  return static_cast<uint16_t>(sign | (exponent << 10) | ((wide >> 13) & 0x3ff));
}

float FromBrain(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

uint16_t ToBrain(float value) {
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof(wide));
  return static_cast<uint16_t>(wide >> 16);
}

template <typename T>
T Combine(T a, T b, int op) {
  if (op == 2) return std::max(a, b);
  if (op == 3) return std::min(a, b);
  if constexpr (std::is_integral_v<T>) {
    // Wraps around, as on the GPU.
    const auto x = static_cast<std::make_unsigned_t<T>>(a), y = static_cast<decltype(x)>(b);
    return static_cast<T>(op == 1 ? x * y : x + y);
  }
  return op == 1 ? a * b : a + b;
}

template <typename T, typename Wide, typename From, typename To>
void ReduceAs(char* out, const std::vector<const char*>& slots, size_t count, int op, From from,
              To to) {
  for (size_t i = 0; i < count; ++i) {
    Wide all{};
    for (size_t r = 0; r < slots.size(); ++r) {
      T next;
      std::memcpy(&next, slots[r] + i * sizeof(T), sizeof(T));
      all = r == 0 ? from(next) : Combine<Wide>(all, from(next), op);
    }
    if (op == 4) all /= static_cast<Wide>(slots.size());
    const T result = to(all);
    std::memcpy(out + i * sizeof(T), &result, sizeof(T));
  }
}

template <typename T>
void ReducePlain(char* out, const std::vector<const char*>& slots, size_t count, int op) {
  const auto same = [](T value) { return value; };
  ReduceAs<T, T>(out, slots, count, op, same, same);
}

}  // namespace

void Reduce(char* out, const std::vector<const char*>& slots, size_t count, int type, int op) {
  if (type == 0) ReducePlain<int8_t>(out, slots, count, op);
  if (type == 1) ReducePlain<uint8_t>(out, slots, count, op);
  if (type == 2) ReducePlain<int32_t>(out, slots, count, op);
  if (type == 3) ReducePlain<uint32_t>(out, slots, count, op);
  if (type == 4) ReducePlain<int64_t>(out, slots, count, op);
  if (type == 5) ReducePlain<uint64_t>(out, slots, count, op);
  if (type == 6) ReduceAs<uint16_t, float>(out, slots, count, op, FromHalf, ToHalf);
  if (type == 7) ReducePlain<float>(out, slots, count, op);
  if (type == 8) ReducePlain<double>(out, slots, count, op);
  if (type == 9) ReduceAs<uint16_t, float>(out, slots, count, op, FromBrain, ToBrain);
}

size_t ElementSize(int type) {
  static constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return type >= 0 && type <= 9 ? kSizes[type] : 0;
}

}  // namespace fake_nccl
