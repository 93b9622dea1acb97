// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace dtrain::allreduce {

// The 16-bit types, which C++20 has no name for; only bits and back.
struct Float16 {
  uint16_t bits = 0;
  bool operator==(const Float16&) const = default;
};
struct Bfloat16 {
  uint16_t bits = 0;
  bool operator==(const Bfloat16&) const = default;
};

// To an element and back, rounding to the nearest, ties to even. For numbers that are zero or
// normal in the type: all that test data is made of.
template <typename T>
struct Element {
  static T From(double value) { return static_cast<T>(value); }
  static double ToDouble(T value) { return static_cast<double>(value); }
  static T Largest() { return std::numeric_limits<T>::max(); }
};

template <>
struct Element<Bfloat16> {
  static Bfloat16 From(double value) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
  }
  static double ToDouble(Bfloat16 value) {
    return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
  }
  static Bfloat16 Largest() { return {0x7f7f}; }
};

template <>
struct Element<Float16> {
  static Float16 From(double value) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    if ((bits & 0x7fffffff) == 0) return {0};
    // From 8 bits of exponent with bias 127 and 23 of fraction to 5 with bias 15 and 10.
    const uint32_t rounded = (bits & 0x7fffffff) + 0xfff + ((bits >> 13) & 1);
    return {static_cast<uint16_t>(((bits >> 16) & 0x8000) | ((rounded >> 13) - (112 << 10)))};
  }
  static double ToDouble(Float16 value) {
    const uint32_t magnitude = value.bits & 0x7fff;
    if (magnitude == 0) return 0;
    return std::bit_cast<float>((static_cast<uint32_t>(value.bits & 0x8000) << 16) |
                                ((magnitude + (112 << 10)) << 13));
  }
  static Float16 Largest() { return {0x7bff}; }
};

}  // namespace dtrain::allreduce
