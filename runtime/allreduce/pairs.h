// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "runtime/allreduce/options.h"

namespace dtrain::allreduce {

struct PairRow {
  int from = 0;
  int to = 0;
  double latency = 0;    // seconds, one way
  double bandwidth = 0;  // bytes a second
};

// Both directions of every pair, on all ranks. False after a failed call, which is then reported.
bool MeasurePairs(const Options& options, Memory memory, std::vector<PairRow>& rows);

}  // namespace dtrain::allreduce
