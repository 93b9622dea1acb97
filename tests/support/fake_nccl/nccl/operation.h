// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/support/fake_nccl/nccl/world.h"

// What kernels do: data between the ranks of a world. Nobody checks that they want the same thing:
// where their sizes fit the results are wrong, where not they wait for ever.
namespace fake_nccl {

enum class Kind : int32_t { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter };

struct Operation {
  Kind kind = Kind::kAllReduce;
  const char* input = nullptr;
  char* output = nullptr;
  size_t count = 0;
  int type = 0;
  int op = 0;
  int root = 0;
};

// One send or receive.
struct Transfer {
  int peer = 0;
  const char* from = nullptr;  // either this
  char* to = nullptr;          // or this
  size_t bytes = 0;
};

size_t ElementSize(int type);  // 0: no such type
struct Extent {
  size_t input = 0, output = 0;  // bytes that a rank uses
};
Extent ExtentOf(const Operation& operation, int rank, int size);

// Return early when `stop` says so.
void RunCollective(World& world, const Operation& operation, const Waiter& stop);
void RunTransfers(World& world, const std::vector<Transfer>& transfers, const Waiter& stop);

void Reduce(char* out, const std::vector<const char*>& slots, size_t count, int type, int op);

}  // namespace fake_nccl
