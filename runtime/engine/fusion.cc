// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/fusion.h"

#include <algorithm>

#include "runtime/base/types.h"

namespace dtrain::runtime {

std::vector<std::vector<size_t>> PlanBatches(const std::vector<Collective>& agreed,
                                             size_t threshold) {
  struct Open {
    dtrain_type type;
    dtrain_op op;
    size_t bytes;
    size_t batch;
  };
  std::vector<std::vector<size_t>> batches;
  std::vector<Open> open;
  for (size_t i = 0; i < agreed.size(); ++i) {
    const Collective& what = agreed[i];
    const size_t bytes = what.count * ElementSize(what.type);
    const bool fuses = what.kind == Collective::Kind::kAllreduce;
    if (!fuses || threshold == 0 || bytes > std::min(threshold, kLargestFused)) {
      batches.push_back({i});
      continue;
    }
    auto found = std::find_if(open.begin(), open.end(), [&](const Open& candidate) {
      return candidate.type == what.type && candidate.op == what.op;
    });
    if (found == open.end()) {
      open.push_back({what.type, what.op, 0, batches.size()});
      batches.emplace_back();
      found = open.end() - 1;
    } else if (found->bytes + bytes > threshold) {
      *found = {what.type, what.op, 0, batches.size()};
      batches.emplace_back();
    }
    found->bytes += bytes;
    batches[found->batch].push_back(i);
  }
  return batches;
}

}  // namespace dtrain::runtime
