// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/inventory/roots.h"

namespace dtrain::inventory {

// Limits of a node that libraries of workers meet in the middle of a job, with words that do not
// name them.
struct SmallLimits {
  std::optional<uint64_t> shared_memory_bytes;  // of /dev/shm; null: not known
  std::optional<uint64_t> locked_memory_bytes;  // RLIMIT_MEMLOCK; null: none that counts
  bool rdma = false;                            // adapters whose buffers must be locked
};
SmallLimits ReadSmallLimits(const Roots& roots);

// What is worth a warning before the start. Pure.
std::vector<std::string> WarningsOf(const SmallLimits& limits);

}  // namespace dtrain::inventory
