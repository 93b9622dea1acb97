// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/cpu/communicator.h"
#include "runtime/reduce/reduce_all.h"
#include "tests/component/runtime/cpu_ranks.h"

namespace dtrain::runtime {

// What every rank gives and must get, by a serial computation on made-up inputs: each rank can make
// those of all others. Values are small whole numbers, which every type holds exactly and whose
// sums and products too (but for the widest products of the 16-bit types, where all ranks give
// ones and twos only), so that the order of additions does not matter here.
class Reference {
 public:
  Reference(Collective what, int rank, int size, uint64_t seed)
      : what_(what), rank_(rank), size_(size), seed_(seed), width_(ElementSize(what.type)) {}

  size_t input_count() const {
    using Kind = Collective::Kind;
    const bool blocks = what_.kind == Kind::kReduceScatter || what_.kind == Kind::kAlltoall;
    return what_.count * (blocks ? static_cast<size_t>(size_) : 1);
  }
  size_t output_count() const {
    using Kind = Collective::Kind;
    const bool blocks = what_.kind == Kind::kAllgather || what_.kind == Kind::kAlltoall;
    return what_.count * (blocks ? static_cast<size_t>(size_) : 1);
  }

  // Element i of rank r's input.
  int ValueAt(int r, size_t i) const {
    uint64_t x = (seed_ + static_cast<uint64_t>(r) * 0x9e3779b97f4a7c15 + i) * 0xbf58476d1ce4e5b9;
    x ^= x >> 31;
    if (what_.op == DTRAIN_PROD) return 1 + static_cast<int>(x % 7 == 0);
    return static_cast<int>(x % 15) - 7;
  }

  void FillInput(int r, char* to) const {
    for (size_t i = 0; i < input_count(); ++i) Put(to + i * width_, ValueAt(r, i));
  }

  // What output element i must be on this rank.
  double Expected(size_t i) const {
    using Kind = Collective::Kind;
    const size_t block = what_.count == 0 ? 0 : i / what_.count;
    const size_t inside = what_.count == 0 ? 0 : i % what_.count;
    switch (what_.kind) {
      case Kind::kBroadcast:
        return ValueAt(what_.root, i);
      case Kind::kAllgather:
        return ValueAt(static_cast<int>(block), inside);
      case Kind::kAlltoall:
        return ValueAt(static_cast<int>(block), static_cast<size_t>(rank_) * what_.count + inside);
      case Kind::kReduceScatter:
        return Combined(static_cast<size_t>(rank_) * what_.count + i);
      default:
        return Combined(i);
    }
  }

  bool HasOutput() const {
    if (what_.kind == Collective::Kind::kBarrier) return false;
    return what_.kind != Collective::Kind::kReduce || rank_ == what_.root;
  }

  // The first wrong element of `output`, or "". Of large outputs not every element is looked at,
  // but some of every 64, which is what parts are multiples of.
  std::string Check(const char* output) const {
    std::string expected(width_, '\0');
    const size_t n = HasOutput() ? output_count() : 0;
    for (size_t i = 0; i<n; i += n - i> 10000 && i > 10000 ? 61 : 1) {
      Put(expected.data(), Expected(i));
      if (std::memcmp(expected.data(), output + i * width_, width_) != 0) {
        return "element " + std::to_string(i) + " is not " + std::to_string(Expected(i));
      }
    }
    return "";
  }

 private:
  double Combined(size_t i) const {
    double value = ValueAt(0, i);
    for (int r = 1; r < size_; ++r) {
      const double next = ValueAt(r, i);
      if (what_.op == DTRAIN_MIN) value = std::min(value, next);
      if (what_.op == DTRAIN_MAX) value = std::max(value, next);
      if (what_.op == DTRAIN_PROD) value *= next;
      if (what_.op == DTRAIN_SUM || what_.op == DTRAIN_AVG) value += next;
    }
    return what_.op == DTRAIN_AVG ? value / size_ : value;
  }

  void Put(char* to, double value) const {
    const auto put = [&](auto typed) { std::memcpy(to, &typed, sizeof(typed)); };
    switch (what_.type) {
      case DTRAIN_INT32:
        return put(static_cast<int32_t>(value));
      case DTRAIN_INT64:
        return put(static_cast<int64_t>(value));
      case DTRAIN_FLOAT32:
        return put(static_cast<float>(value));
      case DTRAIN_FLOAT64:
        return put(value);
      case DTRAIN_BFLOAT16:
      case DTRAIN_FLOAT16:
        return put(Half(static_cast<float>(value)));
      case DTRAIN_BYTE:
        return put(static_cast<int8_t>(value));
    }
  }

  // Of a float32, to nearest even; only normal numbers and zero occur.
  uint16_t Half(float value) const {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (what_.type == DTRAIN_BFLOAT16) {
      return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
    if ((bits & 0x7fffffff) == 0) return static_cast<uint16_t>(bits >> 16);
    const uint32_t magnitude = (bits & 0x7fffffff) - (112u << 23);
    return static_cast<uint16_t>(((magnitude + 0xfff + ((magnitude >> 13) & 1)) >> 13) |
                                 ((bits >> 16) & 0x8000));
  }

  const Collective what_;
  const int rank_;
  const int size_;
  const uint64_t seed_;
  const size_t width_;
};

// Where the buffers of a case lie.
struct Buffers {
  bool in_place = false;
  bool arena = false;  // memory of the communicator's own
  size_t offset = 0;   // elements from an aligned address
};

// Runs one case on this rank and checks its result, and that nothing else was written.
inline void RunCase(CpuCommunicator& communicator, Collective what, Buffers buffers,
                    uint64_t seed) {
  using Kind = Collective::Kind;
  const Reference reference(what, communicator.rank(), communicator.size(), seed);
  const size_t width = ElementSize(what.type);
  const size_t in_bytes = reference.input_count() * width;
  const size_t out_bytes = reference.output_count() * width;
  const size_t block = static_cast<size_t>(communicator.rank()) * what.count * width;
  const size_t margin = 64 + buffers.offset * width;
  std::vector<char> plain_in, plain_out;
  const auto make = [&](std::vector<char>& plain, size_t bytes) -> char* {
    if (buffers.arena) {
      auto memory = communicator.Allocate(bytes + 2 * margin);
      EXPECT_TRUE(memory.ok() && *memory != nullptr);
      return static_cast<char*>(*memory);
    }
    plain.assign(bytes + 2 * margin, 'x');
    return plain.data();
  };
  const size_t larger = std::max(in_bytes, out_bytes);
  char* out_base = make(plain_out, larger);
  char* in_base =
      buffers.in_place || what.kind == Kind::kBroadcast ? out_base : make(plain_in, larger);
  std::memset(out_base, 'x', larger + 2 * margin);
  char* output = out_base + margin;
  char* input = in_base + margin;
  if (buffers.in_place && what.kind == Kind::kAllgather) input = output + block;
  if (buffers.in_place && what.kind == Kind::kReduceScatter) output = input + block;
  if (what.kind != Kind::kBroadcast || communicator.rank() == what.root) {
    reference.FillInput(communicator.rank(), input);
  }
  what.input = what.kind == Kind::kBroadcast ? nullptr : input;
  what.output = reference.HasOutput() ? output : nullptr;
  MustRun(communicator, what);
  const std::string wrong = reference.Check(output);
  EXPECT_EQ(wrong, "") << "rank " << communicator.rank() << " of " << communicator.size() << ": "
                       << Describe(what) << (buffers.in_place ? ", in place" : "")
                       << (buffers.arena ? ", arena" : "") << ", offset " << buffers.offset;
  EXPECT_EQ(out_base[margin - 1], 'x') << Describe(what);
  EXPECT_EQ(out_base[margin + larger], 'x') << Describe(what);
  if (buffers.arena) {
    EXPECT_FALSE(communicator.Free(out_base));
    EXPECT_TRUE(in_base == out_base || !communicator.Free(in_base));
  }
}

inline std::vector<Collective::Kind> AllKinds() {
  using Kind = Collective::Kind;
  return {Kind::kBarrier,       Kind::kAllreduce, Kind::kBroadcast, Kind::kAllgather,
          Kind::kReduceScatter, Kind::kAlltoall,  Kind::kReduce};
}

}  // namespace dtrain::runtime
