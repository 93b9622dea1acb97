// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/inventory/roots.h"
#include "common/base/clock.h"

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

// Warns of shared memory that a user's jobs have made and that their shepherds, which were killed,
// could not remove. Loop thread.
class LeftMemoryWarnings {
 public:
  // "" if none is left. An answer serves for a second, or longer if looks would otherwise take more
  // than a tenth of the time.
  std::string For(uid_t user);

 private:
  struct Answer {
    std::string warning;
    TimePoint until;
  };
  std::map<uid_t, Answer> answers_;
};

}  // namespace dtrain::inventory
