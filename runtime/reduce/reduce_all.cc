// SPDX-License-Identifier: Apache-2.0
#include "runtime/reduce/reduce_all.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "runtime/reduce/variant.h"

namespace dtrain::runtime {
namespace {

const ReduceTable& TableOf(Vectors vectors) {
#if defined(__x86_64__)
  if (vectors == Vectors::kAvx512) return kAvx512Reduce;
  if (vectors == Vectors::kAvx2) return kAvx2Reduce;
#endif
  (void)vectors;
  return kBaselineReduce;
}

#if defined(__x86_64__)
// Clang's __builtin_cpu_supports does not know this one.
bool HasF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

}  // namespace

Vectors BestVectors() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return Vectors::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && HasF16c()) return Vectors::kAvx2;
#endif
  return Vectors::kBaseline;
}

void ReduceAllWith(Vectors vectors, void* output, const void* const* inputs, int k, size_t n,
                   dtrain_type type, dtrain_op op, double divisor) {
  TableOf(vectors).by_type[type].by_op[op](output, inputs, k, n, divisor);
}

void CopyBytesWith(Vectors vectors, void* to, const void* from, size_t bytes) {
  TableOf(vectors).copy(to, from, bytes);
}

void CopyBytes(void* to, const void* from, size_t bytes) {
  static const Vectors best = BestVectors();
  CopyBytesWith(best, to, from, bytes);
}

void ReduceAll(void* output, const void* const* inputs, int k, size_t n, dtrain_type type,
               dtrain_op op, double divisor) {
  static const Vectors best = BestVectors();
  ReduceAllWith(best, output, inputs, k, n, type, op, divisor);
}

}  // namespace dtrain::runtime
