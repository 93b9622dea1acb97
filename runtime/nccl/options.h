// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "runtime/base/result.h"

namespace dtrain::runtime {

struct NcclOptions {
  int local_rank = 0;
  std::string node;           // tells machines apart: equal for the ranks of one
  std::string address;        // numeric, reachable from the other ranks; empty: no alarm among them
  bool share_gpu = false;     // DTRAIN_SHARE_GPU=1: several ranks on one GPU, for tests
  bool check = false;         // DTRAIN_CHECK=1: compare the ranks' calls before each collective
  std::optional<int> device;  // DTRAIN_DEVICE: number of the GPU among those this process sees
  // DTRAIN_NCCL_INIT_SECONDS. Short: when NCCL has not met by then, a firewall is the reason.
  std::chrono::milliseconds init_timeout{std::chrono::seconds(60)};
  // For NCCL to abort or destroy a communicator, before it counts as hanging.
  std::chrono::milliseconds longest_end{std::chrono::seconds(10)};
};

// The variables above; local_rank, node and address are the caller's to fill in.
Result<NcclOptions> ReadNcclOptions(const std::function<const char*(const char*)>& get);

}  // namespace dtrain::runtime
