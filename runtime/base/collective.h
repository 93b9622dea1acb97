// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "dtrain/dtrain.h"

namespace dtrain::runtime {

// One collective as the caller asked for it; arguments are checked. All ranks of its group must
// agree on everything but the addresses.
//
//   kind           input (elements)   output (elements)   notes
//   kBarrier       -                  -
//   kAllreduce     count              count
//   kBroadcast     -                  count               in place: output is the buffer, from root
//   kAllgather     count              size * count
//   kReduceScatter size * count       count               rank r gets block r
//   kAlltoall      size * count       size * count        block r goes to rank r; see `counts`
//   kReduce        count              count               output only on root, else may be null
struct Collective {
  // Numbers are those of TimelineKind (common/page/worker_page.h).
  enum class Kind : uint8_t {
    kBarrier,
    kAllreduce,
    kBroadcast,
    kAllgather,
    kReduceScatter,
    kAlltoall,
    kReduce
  };

  Kind kind = Kind::kBarrier;
  uint64_t number = 0;  // 0, 1, ... over the life of its communicator
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  // elements, see above
  dtrain_type type = DTRAIN_INT32;
  dtrain_op op = DTRAIN_SUM;
  int root = 0;
  void* stream = nullptr;  // a cudaStream_t, for device buffers
  uint32_t name = 0;       // NameHash of the caller's name for it; 0: none
  // Of an all-to-all whose blocks differ in length, size * size: element [i * size + j] is how many
  // elements rank i has for rank j. `count` is the most of them. The same on all ranks.
  const uint64_t* counts = nullptr;
  bool alike = false;  // with `counts`: all blocks that a rank sends are one and the same
};

// How the shape of those begins whose ranks have any number of rows.
constexpr std::string_view kRowsOf = "rows of ";

// Where the time of one collective went, nanoseconds. What a communicator cannot tell, or what
// would take as long to measure as to do, stays 0.
struct Spent {
  int64_t begin_ns = 0;  // of CLOCK_MONOTONIC, when it began; given by the caller where it knows
  int64_t negotiate_ns = 0;
  int64_t wait_ns = 0;  // for the last rank
  int64_t transfer_ns = 0;
  int64_t reduce_ns = 0;
};

// Never 0 for a name that is not empty.
uint32_t NameHash(std::string_view name);

// "allreduce sum of 1024 float32", "broadcast from rank 3 of 7 int64".
std::string Describe(const Collective& what);

}  // namespace dtrain::runtime
