// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "runtime/base/result.h"
#include "runtime/nccl/pinning.h"

namespace dtrain::runtime {

struct NcclOptions {
  int local_rank = 0;
  int job_rank = -1;          // its number in the job, for texts; -1: that of the communicator
  std::string node;           // tells machines apart: equal for the ranks of one
  std::string group;          // "the group of ranks 2, 1", for texts; empty: all of the job
  bool share_gpu = false;     // DTRAIN_SHARE_GPU=1: several ranks on one GPU, for tests
  std::optional<int> device;  // DTRAIN_DEVICE: number of the GPU among those this process sees
  Pinning pinning;
  // DTRAIN_NCCL_INIT_SECONDS: for NCCL to connect the ranks, once all are there. NCCL gives a
  // connection up after 60 s and names the address, which says more than that time is over.
  std::chrono::milliseconds init_timeout{std::chrono::seconds(120)};
  std::chrono::milliseconds init_timeout_per_rank{50};
  // Whether the ends of collectives are wanted to the millisecond, for a timeline.
  bool fine_times = false;
  // For NCCL to abort or destroy a communicator, before it counts as hanging.
  std::chrono::milliseconds longest_end{std::chrono::seconds(10)};
};

// The variables above; local_rank, node and group are the caller's to fill in. `start`: those that
// the process began with.
Result<NcclOptions> ReadNcclOptions(const Variables& get, const Variables& start);

}  // namespace dtrain::runtime
