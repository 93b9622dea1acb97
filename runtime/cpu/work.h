// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstring>
#include <vector>

#include "runtime/base/collective.h"
#include "runtime/base/communicator.h"
#include "runtime/base/types.h"
#include "runtime/reduce/reduce_all.h"
#include "runtime/shm/local_group.h"
#include "runtime/shm/peer_memory.h"

namespace dtrain::runtime {

// One collective on its way through a communicator.
struct Work {
  const Collective& what;
  Descriptor request;  // what the other ranks of the node see of it
  Deadline deadline;
  Spent& spent;
  double divisor = 1;    // of the last reduction
  int node_divisor = 1;  // of that over the ranks of one node, where another one follows

  size_t width() const { return ElementSize(what.type); }
  size_t bytes() const { return what.count * width(); }
  const char* input() const { return static_cast<const char*>(what.input); }
  char* output() const { return static_cast<char*>(what.output); }
  bool is(Collective::Kind kind) const { return what.kind == kind; }
};

// What takes less time than looking at a clock twice is not timed.
constexpr size_t kTimedBytes = 1024;

// Adds the time of its life to a part of Spent.
class Stopwatch {
 public:
  explicit Stopwatch(int64_t& total, size_t bytes = kTimedBytes)
      : total_(total), runs_(bytes >= kTimedBytes) {
    if (runs_) begin_ = std::chrono::steady_clock::now();
  }
  ~Stopwatch() {
    if (!runs_) return;
    const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - begin_;
    total_ += time.count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  int64_t& total_;
  const bool runs_;
  std::chrono::steady_clock::time_point begin_;
};

inline void Copy(const Work& work, void* to, const void* from, size_t bytes) {
  if (bytes == 0 || to == from) return;
  const Stopwatch watch(work.spent.transfer_ns, bytes);
  CopyBytes(to, from, bytes);
}

inline void Reduce(const Work& work, void* to, const void* const* from, int k, size_t n,
                   double divisor) {
  if (n == 0) return;
  const Stopwatch watch(work.spent.reduce_ns, n * work.width());
  ReduceAll(to, from, k, n, work.what.type, work.what.op, divisor);
}

}  // namespace dtrain::runtime
