// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace dtrain::runtime {

// output[i] = inputs[0][i] op ... op inputs[k - 1][i], in this order, divided by `divisor`.
using ReduceKernel = void (*)(void* output, const void* const* inputs, int k, size_t n,
                              double divisor);

struct ReduceRow {
  ReduceKernel by_op[5];
};
struct ReduceTable {
  ReduceRow by_type[6];
  void (*copy)(void* to, const void* from, size_t bytes);
};

// The same loops, compiled for three instruction sets. They give the same bits.
extern const ReduceTable kBaselineReduce;
#if defined(__x86_64__)
extern const ReduceTable kAvx2Reduce;
extern const ReduceTable kAvx512Reduce;
#endif

}  // namespace dtrain::runtime
