// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include "dtrain/dtrain.h"

// The real all-reduce, but rank 1 gets one element of large float32 ones wrong.
extern "C" __attribute__((visibility("default"))) dtrain_status dtrain_allreduce(
    const void* input, void* output, size_t count, dtrain_type type, dtrain_op op) {
  static const auto real =
      reinterpret_cast<decltype(&dtrain_allreduce)>(dlsym(RTLD_NEXT, "dtrain_allreduce"));
  const dtrain_status status = real(input, output, count, type, op);
  if (type == DTRAIN_FLOAT32 && count >= 100 && dtrain_rank() == 1) {
    static_cast<float*>(output)[42] += 1;
  }
  return status;
}
