// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <vector>

#include "dtrain/dtrain.h"
#include "runtime/allreduce/buffers.h"
#include "runtime/allreduce/options.h"
#include "runtime/allreduce/pattern.h"

namespace dtrain::allreduce {

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

inline double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Timing {
  double seconds = 0;
  int64_t wrong = 0;  // elements, on all ranks
};

struct Row {
  size_t bytes = 0;                // of the larger buffer
  Timing timing;                   // out of place, unless --in-place
  std::optional<Timing> in_place;  // only when pipelined, and where the collective can
};

// Elements of one collective.
struct Shape {
  size_t count;   // as the call has it
  size_t input;   // of the whole input buffer; 0: there is none
  size_t output;  // of the whole output buffer
};

inline Shape ShapeOf(Kind kind, size_t elements, size_t ranks) {
  const size_t block = std::max<size_t>(elements / ranks, 1);
  switch (kind) {
    case Kind::kAllgather:
      return {block, block, block * ranks};
    case Kind::kReduceScatter:
      return {block, block * ranks, block};
    case Kind::kAlltoall:
      return {block, block * ranks, block * ranks};
    case Kind::kBroadcast:
      return {elements, 0, elements};
    default:
      return {elements, elements, elements};
  }
}

// Times one collective of elements of type T.
template <typename T>
class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        rank_(static_cast<size_t>(dtrain_rank())),
        ranks_(static_cast<size_t>(dtrain_size())),
        in_place_(options.in_place),
        pattern_(dtrain_rank(), dtrain_size(), options.op) {}

  // Memory for the largest size; false when there is none.
  bool Prepare(size_t most_bytes, Memory memory, dtrain_group alone) {
    const size_t elements = std::max<size_t>(most_bytes / sizeof(T), 1);
    const Shape shape = ShapeOf(options_.kind, elements, ranks_);
    // Whole words, because copies to a GPU are made of such.
    const auto bytes = [](size_t n) { return (n * sizeof(T) + 7) / 8 * 8; };
    if (!output_.Make(bytes(shape.output), memory, alone)) return false;
    if (options_.in_place || shape.input == 0) return true;
    if (!input_.Make(bytes(shape.input), memory, alone)) return false;
    T* data = static_cast<T*>(input_.Get(bytes(shape.input)));
    if (data == nullptr) return false;
    pattern_.FillInput(data, shape.input);
    return input_.Put(bytes(shape.input));
  }

  // `manner` is not kAuto. False after a failed call.
  bool Measure(size_t bytes, Manner manner, Row& row) {
    const size_t elements = std::max<size_t>(bytes / sizeof(T), 1);
    shape_ = ShapeOf(options_.kind, elements, ranks_);
    row.bytes = std::max(shape_.input, shape_.output) * sizeof(T);
    if (manner == Manner::kLatency) return MeasureOneByOne(row.timing);
    if (!MeasurePipelined(row.timing)) return false;
    if (options_.kind == Kind::kAlltoall) return true;  // NCCL's has no in place
    in_place_ = true;
    // Filled once more: a reduce_scatter in place has overwritten a part of its input.
    const bool good = MeasurePipelined(row.in_place.emplace()) && Fill();
    in_place_ = false;
    return good;
  }

 private:
  bool MeasureOneByOne(Timing& timing) {
    double fastest = 0;
    if (options_.warmup.value_or(2) > 0 && !(Fill() && WarmUp(fastest) && Check(timing))) {
      return false;
    }
    std::vector<double> times(Iterations(fastest));
    if (!Fill()) return false;
    for (double& time : times) {
      if (!Timed(time)) return false;
    }
    // In place the sums have grown with every call.
    if (in_place_ && !(Fill() && Ok(Call()))) return false;
    if (!Check(timing)) return false;
    if (!Ok(dtrain_allreduce(times.data(), times.data(), times.size(), DTRAIN_FLOAT64,
                             DTRAIN_MAX)) ||
        !Ok(dtrain_allreduce(&timing.wrong, &timing.wrong, 1, DTRAIN_INT64, DTRAIN_SUM))) {
      return false;
    }
    timing.seconds = Median(times);
    return true;
  }

  // As nccl-tests: the mean over the calls, and over the ranks.
  bool MeasurePipelined(Timing& timing) {
    const auto warmup = static_cast<size_t>(options_.warmup.value_or(5));
    const auto calls = static_cast<size_t>(options_.iterations.value_or(20));
    if (!Fill() || (warmup > 0 && !CallManyTimes(warmup)) || !CallManyTimes(1)) return false;
    if (!Ok(dtrain_barrier())) return false;
    const auto start = std::chrono::steady_clock::now();
    if (!CallManyTimes(calls)) return false;
    timing.seconds = SecondsSince(start) / static_cast<double>(calls);
    if (!(Fill() && Ok(Call()) && Check(timing))) return false;
    return Ok(dtrain_allreduce(&timing.seconds, &timing.seconds, 1, DTRAIN_FLOAT64, DTRAIN_AVG)) &&
           Ok(dtrain_allreduce(&timing.wrong, &timing.wrong, 1, DTRAIN_INT64, DTRAIN_SUM));
  }

  // The last call is the blocking one: it comes after the others and waits for the GPU, which
  // dtrain_wait does not. All of them use the same buffers. That is fine without fusion: calls of
  // one group then run in the order in which they were made.
  bool CallManyTimes(size_t calls) {
    handles_.assign(calls - 1, 0);
    for (dtrain_handle& handle : handles_) {
      if (!Ok(CallAsync(handle))) return false;
    }
    if (!Ok(Call())) return false;
    return std::all_of(handles_.begin(), handles_.end(),
                       [](dtrain_handle handle) { return Ok(dtrain_wait(handle)); });
  }

  // The first call checks the result; the fastest one, of the slowest rank, tells what to expect.
  bool WarmUp(double& fastest) {
    std::vector<double> times(static_cast<size_t>(options_.warmup.value_or(2)));
    for (double& time : times) {
      if (!Timed(time)) return false;
      if (in_place_ && !Fill()) return false;
    }
    if (in_place_ && !Ok(Call())) return false;
    if (!Ok(dtrain_allreduce(times.data(), times.data(), times.size(), DTRAIN_FLOAT64,
                             DTRAIN_MAX))) {
      return false;
    }
    fastest = *std::min_element(times.begin(), times.end());
    return true;
  }

  // Large sizes are slow and their times steady. The same on every rank.
  size_t Iterations(double expected_seconds) const {
    constexpr double kSeconds = 0.2;
    if (options_.iterations) return static_cast<size_t>(*options_.iterations);
    if (expected_seconds <= 0) return 20;
    return static_cast<size_t>(std::clamp(kSeconds / expected_seconds, 3.0, 1000.0));
  }

  bool Timed(double& seconds) {
    if (!Ok(dtrain_barrier())) return false;
    const auto start = std::chrono::steady_clock::now();
    if (!Ok(Call())) return false;
    seconds = SecondsSince(start);
    return true;
  }

  size_t OwnBlock() const { return rank_ * shape_.count; }
  bool ScattersInPlace() const { return in_place_ && options_.kind == Kind::kReduceScatter; }
  bool GathersInPlace() const { return in_place_ && options_.kind == Kind::kAllgather; }

  const void* Input() const {
    if (!in_place_ || ScattersInPlace()) return input_.data();
    return GathersInPlace() ? static_cast<T*>(output_.data()) + OwnBlock() : output_.data();
  }
  void* Output() const {
    return ScattersInPlace() ? static_cast<T*>(input_.data()) + OwnBlock() : output_.data();
  }

  dtrain_status CallAsync(dtrain_handle& handle) {
    void* output = Output();
    const void* input = Input();
    const size_t n = shape_.count;
    const dtrain_type type = options_.type;
    switch (options_.kind) {
      case Kind::kBroadcast:
        return dtrain_broadcast_async(output, n, type, 0, nullptr, &handle);
      case Kind::kAllgather:
        return dtrain_allgather_async(input, output, n, type, nullptr, &handle);
      case Kind::kReduceScatter:
        return dtrain_reduce_scatter_async(input, output, n, type, options_.op, nullptr, &handle);
      case Kind::kAlltoall:
        return dtrain_alltoall_async(input, output, n, type, nullptr, &handle);
      case Kind::kReduce:
        return dtrain_reduce_async(input, output, n, type, options_.op, 0, nullptr, &handle);
      default:
        return dtrain_allreduce_async(input, output, n, type, options_.op, nullptr, &handle);
    }
  }

  dtrain_status Call() {
    void* output = Output();
    const void* input = Input();
    const size_t n = shape_.count;
    const dtrain_type type = options_.type;
    switch (options_.kind) {
      case Kind::kBroadcast:
        return dtrain_broadcast(output, n, type, 0);
      case Kind::kAllgather:
        return dtrain_allgather(input, output, n, type);
      case Kind::kReduceScatter:
        return dtrain_reduce_scatter(input, output, n, type, options_.op);
      case Kind::kAlltoall:
        return dtrain_alltoall(input, output, n, type);
      case Kind::kReduce:
        return dtrain_reduce(input, output, n, type, options_.op, 0);
      default:
        return dtrain_allreduce(input, output, n, type, options_.op);
    }
  }

  // What the call begins with: marks, which it must replace, or its input.
  bool Fill() {
    if (ScattersInPlace()) {
      const size_t input_bytes = WholeWords(shape_.input * sizeof(T));
      T* input = static_cast<T*>(input_.Get(input_bytes));
      if (input == nullptr) return false;
      pattern_.FillInput(input, shape_.input);
      return input_.Put(input_bytes);
    }
    const size_t bytes = WholeWords(shape_.output * sizeof(T));
    T* data = static_cast<T*>(output_.Get(bytes));
    if (data == nullptr) return false;
    if (GathersInPlace()) {
      Pattern<T>::FillMark(data, shape_.output);
      pattern_.FillInput(data + OwnBlock(), shape_.count);
    } else if (options_.kind == Kind::kBroadcast ? rank_ == 0 : in_place_) {
      pattern_.FillInput(data, shape_.output);
    } else {
      Pattern<T>::FillMark(data, shape_.output);
    }
    return output_.Put(bytes);
  }

  static size_t WholeWords(size_t bytes) { return (bytes + 3) / 4 * 4; }

  size_t CountWrong(const T* data, size_t& first) const {
    switch (options_.kind) {
      case Kind::kBroadcast:
        return pattern_.CountWrongCopy(data, shape_.output, 0, first);
      case Kind::kAllgather:
        return CountWrongBlocks(data, 0, first);
      case Kind::kAlltoall:
        return CountWrongBlocks(data, rank_ * shape_.count, first);
      case Kind::kReduceScatter:
        return pattern_.CountWrong(data, shape_.count, first, rank_ * shape_.count);
      case Kind::kReduce:
        return rank_ == 0 ? pattern_.CountWrong(data, shape_.count, first) : 0;
      default:
        return pattern_.CountWrong(data, shape_.count, first);
    }
  }

  // Block r is what rank r has from `from` on.
  size_t CountWrongBlocks(const T* data, size_t from, size_t& first) const {
    size_t wrong = 0;
    for (size_t r = 0; r < ranks_; ++r) {
      size_t here = 0;
      const size_t begin = r * shape_.count;
      const size_t more =
          pattern_.CountWrongCopy(data + begin, shape_.count, static_cast<int>(r), here, from);
      if (more > 0 && wrong == 0) first = begin + here;
      wrong += more;
    }
    return wrong;
  }

  // Adds this rank's wrong elements.
  bool Check(Timing& timing) {
    if (!options_.check) return true;
    const bool scatters = ScattersInPlace();
    Buffer& buffer = scatters ? input_ : output_;
    const T* data = static_cast<T*>(
        buffer.Get(WholeWords((scatters ? shape_.input : shape_.output) * sizeof(T))));
    if (data == nullptr) return false;
    if (scatters) data += OwnBlock();
    size_t first = 0;
    const size_t wrong = CountWrong(data, first);
    if (wrong == 0) return true;
    timing.wrong += static_cast<int64_t>(wrong);
    std::fprintf(
        stderr,
        "dtrain-allreduce: rank %zu: %zu of %zu elements are wrong; the first one, at index "
        "%zu, is %.9g\n",
        rank_, wrong, shape_.output, first, Element<T>::ToDouble(data[first]));
    return true;
  }

  const Options& options_;
  const size_t rank_;
  const size_t ranks_;
  bool in_place_;
  const Pattern<T> pattern_;
  Buffer input_;
  Buffer output_;
  Shape shape_ = {};
  std::vector<dtrain_handle> handles_;
};

}  // namespace dtrain::allreduce
