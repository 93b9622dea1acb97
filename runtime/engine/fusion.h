// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/base/collective.h"

namespace dtrain::runtime {

// Which of the operations that all ranks have agreed on travel together: indices into `agreed`, in
// an order that follows from the operations alone. Only all-reduces do, of one type and operation,
// up to `threshold` bytes. Larger ones gain nothing from it and go alone, without being copied;
// with a threshold of 0 all do, empty ones too. Pure.
constexpr size_t kLargestFused = size_t{512} << 10;  // bytes
std::vector<std::vector<size_t>> PlanBatches(const std::vector<Collective>& agreed,
                                             size_t threshold);

}  // namespace dtrain::runtime
