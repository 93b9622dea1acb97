// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

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
// The first of them.
SmallLimits ReadSharedMemory();
// The others, as they are of `pid` (0: this process), whose limit workers inherit. A process with
// CAP_IPC_LOCK has none, but `of_users`: workers will be without it.
SmallLimits ReadLockedMemory(const Roots& roots, pid_t pid, bool of_users = false);

// What is worth a warning before the start. Pure.
std::vector<std::string> WarningsOf(const SmallLimits& limits);

// Of shared memory that the user's jobs have made and that their shepherds, which were killed,
// could not remove; empty: there is none. All who ask for the same user within a second get the
// same answer, or for longer if looks would take more than a tenth of the time. Loop thread.
std::string WarningOfLeftMemory(uid_t user);

}  // namespace dtrain::inventory
