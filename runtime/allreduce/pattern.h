// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "dtrain/dtrain.h"
#include "runtime/allreduce/element.h"

namespace dtrain::allreduce {

// Test data for one rank whose reduction over all ranks is exact in every type, and known without
// communication. It repeats with a prime period, so that data at a wrong place shows. (bfloat16 is
// exact up to 128 ranks, float16 up to 1024.)
template <typename T>
class Pattern {
 public:
  Pattern(int rank, int size, dtrain_op op) : rank_(rank), op_(op) {
    for (size_t i = 0; i < kPeriod; ++i) {
      input_[i] = Element<T>::From(static_cast<double>(At(i, rank, op)));
      int64_t all = At(i, 0, op);
      for (int r = 1; r < size; ++r) all = Combine(all, At(i, r, op), op);
      expected_[i] =
          op == DTRAIN_AVG ? Average(all, size) : Element<T>::From(static_cast<double>(all));
    }
  }

  void FillInput(T* data, size_t n) const {
    for (size_t i = 0; i < n; ++i) data[i] = input_[i % kPeriod];
  }
  // No expected value; what a collective leaves of it counts as wrong.
  static void FillMark(T* data, size_t n) {
    for (size_t i = 0; i < n; ++i) data[i] = Element<T>::Largest();
  }

  // Of the reduction over all ranks.
  T expected(size_t i) const { return expected_[i % kPeriod]; }
  // What any rank's data has at `i`.
  T input(int rank, size_t i) const {
    if (rank == rank_) return input_[i % kPeriod];
    return Element<T>::From(static_cast<double>(At(i % kPeriod, rank, op_)));
  }

  // How many of the `n` elements differ from expected(from), expected(from + 1) ...; `first`
  // becomes the index of the first of them.
  size_t CountWrong(const T* data, size_t n, size_t& first, size_t from = 0) const {
    size_t wrong = 0;
    for (size_t i = 0; i < n; ++i) {
      if (data[i] == expected_[(from + i) % kPeriod]) continue;
      if (wrong++ == 0) first = i;
    }
    return wrong;
  }
  // The same for a copy of rank `rank`'s data.
  size_t CountWrongCopy(const T* data, size_t n, int rank, size_t& first, size_t from = 0) const {
    std::array<T, kPeriod> copy;
    for (size_t i = 0; i < kPeriod; ++i) copy[i] = input(rank, i);
    size_t wrong = 0;
    for (size_t i = 0; i < n; ++i) {
      if (data[i] == copy[(from + i) % kPeriod]) continue;
      if (wrong++ == 0) first = i;
    }
    return wrong;
  }

 private:
  static constexpr size_t kPeriod = 23;
  static constexpr bool kHalf = sizeof(T) == 2;

  static int64_t At(size_t i, int rank, dtrain_op op) {
    const auto value = static_cast<int64_t>((i * 7 + static_cast<size_t>(rank) * 5) % kPeriod);
    // So that a product of a thousand ranks fits, and a sum needs few bits where there are few.
    if (op == DTRAIN_PROD) return value == 0 ? 2 : 1;
    return kHalf ? value % 3 : value;
  }
  static int64_t Combine(int64_t a, int64_t b, dtrain_op op) {
    if (op == DTRAIN_MIN) return a < b ? a : b;
    if (op == DTRAIN_MAX) return a < b ? b : a;
    return op == DTRAIN_PROD ? a * b : a + b;
  }
  // In the type itself, or for halves in float32, as the library does it.
  static T Average(int64_t sum, int size) {
    if constexpr (std::is_arithmetic_v<T>) {
      return static_cast<T>(sum) / static_cast<T>(size);
    } else {
      return Element<T>::From(static_cast<float>(sum) / static_cast<float>(size));
    }
  }

  const int rank_;
  const dtrain_op op_;
  std::array<T, kPeriod> input_;
  std::array<T, kPeriod> expected_;
};

}  // namespace dtrain::allreduce
