// SPDX-License-Identifier: Apache-2.0
#include "runtime/reduce/kernels.inc"

namespace dtrain::runtime {

const ReduceTable kBaselineReduce = kTable;

}  // namespace dtrain::runtime
