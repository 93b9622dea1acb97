// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "dtrain/dtrain.h"

namespace dtrain::allreduce {

enum class Kind { kAllreduce, kBroadcast, kAllgather, kReduceScatter, kAlltoall, kReduce, kPairs };

// How a size is timed.
enum class Manner {
  kAuto,      // kPipelined when the job runs on NCCL, else kLatency
  kLatency,   // a barrier before each call; median of the slowest rank's time
  kPipelined  // as nccl-tests: calls back to back; mean over calls and ranks
};

// What the buffers are made of.
enum class Memory {
  kAuto,    // kDevice when the job runs on NCCL, else kPlain
  kPlain,   // of this process
  kShared,  // dtrain_alloc
  kDevice   // dtrain_alloc_device
};

struct Options {
  Kind kind = Kind::kAllreduce;
  std::vector<size_t> sizes;  // given one by one; empty: those of the three below
  size_t min_bytes = 4;
  size_t max_bytes = size_t{64} << 20;
  size_t factor = 2;              // from one size to the next
  std::optional<int> iterations;  // timed ones; by default 20, or as many as fit in a while
  std::optional<int> warmup;      // by default 5 when pipelined, else 2
  Manner manner = Manner::kAuto;
  dtrain_type type = DTRAIN_FLOAT32;
  dtrain_op op = DTRAIN_SUM;
  Memory memory = Memory::kAuto;
  bool in_place = false;
  bool check = true;
  bool json = false;
  bool fit = false;  // leave out sizes that there is no memory for, instead of failing
  bool help = false;
};

extern const char kUsage[];

// The options, or what is wrong with the command line.
std::variant<Options, std::string> ParseOptions(int argc, char** argv);

// The sizes in bytes to measure, in order.
std::vector<size_t> SizesOf(const Options& options);

const char* NameOf(Kind kind);
const char* NameOf(Memory memory);
const char* NameOf(Manner manner);
const char* NameOf(dtrain_type type);
const char* NameOf(dtrain_op op);
size_t ElementBytes(dtrain_type type);
bool Reduces(Kind kind);  // has an operation

}  // namespace dtrain::allreduce
