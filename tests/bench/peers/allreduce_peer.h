// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

// How every peer of tests/bench/allreduce.py times its all-reduce (allreduce_torch.py does the
// same): a barrier before each call; of each call the slowest rank's time; of all calls the median.
// A library may have several ways to do it, and memory of its own; each is timed.
namespace peers {

struct Way {
  std::string name;
  bool in_place;
  std::function<void(const float* input, float* output, size_t count)> reduce;
};

// Where buffers come from.
struct Memory {
  std::string name;
  std::function<void*(size_t bytes)> allocate;
  std::function<void(void* memory)> free;
};

inline Memory PlainMemory() {
  return {"malloc", [](size_t bytes) { return std::malloc(bytes); },
          [](void* at) { std::free(at); }};
}

struct Peer {
  int rank = 0;
  int size = 1;
  std::function<void()> barrier;
  std::function<void(double* values, size_t count)> max;  // over all ranks, in place
  std::vector<Way> ways;
  std::vector<Memory> memories = {PlainMemory()};
};

inline std::vector<size_t> Sizes(int argc, char** argv) {
  std::vector<size_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  return sizes;
}

// One size in one kind of memory.
class Timing {
 public:
  static constexpr double kEnough = 0.3;  // seconds

  Timing(const Peer& peer, const Memory& memory, size_t count)
      : peer_(peer),
        memory_(memory),
        count_(count),
        input_(static_cast<float*>(memory.allocate(count * sizeof(float)))),
        output_(static_cast<float*>(memory.allocate(count * sizeof(float)))) {
    if (input_ == nullptr || output_ == nullptr) std::abort();
    Fill();
  }
  ~Timing() {
    memory_.free(input_);
    memory_.free(output_);
  }
  Timing(const Timing&) = delete;
  Timing& operator=(const Timing&) = delete;

  // One line of JSON on rank 0 for each way.
  void Run() {
    for (const Way& way : peer_.ways) Run(way);
  }

 private:
  void Run(const Way& way) {
    Median(way, 1);
    // A few where one takes long, because those differ little.
    const int calls = static_cast<int>(std::clamp(kEnough / Median(way, 3), 5.0, 20000.0));
    const double seconds = Median(way, calls);
    const double wrong = Wrong(way);
    if (peer_.rank != 0) return;
    std::printf(
        "{\"bytes\": %zu, \"seconds\": %.9g, \"calls\": %d, \"memory\": \"%s\", \"way\": \"%s\", "
        "\"wrong\": %g}\n",
        count_ * sizeof(float), seconds, calls, memory_.name.c_str(), way.name.c_str(), wrong);
    std::fflush(stdout);
  }

  // Sums that are exact, and the same at every call as long as the input stays.
  float Mine(size_t i) const { return static_cast<float>(i % 31 + peer_.rank); }
  float Sum(size_t i) const {
    return static_cast<float>(peer_.size * (i % 31) + peer_.size * (peer_.size - 1) / 2);
  }
  void Fill() {
    for (size_t i = 0; i < count_; ++i) input_[i] = output_[i] = Mine(i);
  }
  // In place the sums grow with every call, up to infinity, which is as fast as any other number.
  void Call(const Way& way) { way.reduce(way.in_place ? output_ : input_, output_, count_); }

  // Of `most` calls, or of as many as take kEnough together.
  double Median(const Way& way, int most) {
    std::vector<double> all;
    double taken = 0;
    while (all.size() < static_cast<size_t>(most) && taken < kEnough) {
      std::vector<double> times(std::min(static_cast<size_t>(most) - all.size(), size_t{100}));
      for (double& time : times) {
        peer_.barrier();
        const auto start = std::chrono::steady_clock::now();
        Call(way);
        time = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      }
      peer_.max(times.data(), times.size());
      for (const double time : times) taken += time;
      all.insert(all.end(), times.begin(), times.end());
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
  }

  double Wrong(const Way& way) {
    Fill();
    peer_.barrier();
    Call(way);
    double wrong = 0;
    for (size_t i = 0; i < count_; ++i) wrong += output_[i] != Sum(i) ? 1 : 0;
    peer_.max(&wrong, 1);
    return wrong;
  }

  const Peer& peer_;
  const Memory& memory_;
  const size_t count_;
  float* const input_;
  float* const output_;
};

inline void RunAll(const Peer& peer, const std::vector<size_t>& sizes) {
  for (const size_t bytes : sizes) {
    for (const Memory& memory : peer.memories) Timing(peer, memory, bytes / sizeof(float)).Run();
  }
}

}  // namespace peers
