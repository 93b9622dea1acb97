// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include "runtime/reduce/kernels.inc"

namespace dtrain::runtime {

const ReduceTable kAvx2Reduce = kTable;

}  // namespace dtrain::runtime
#endif
