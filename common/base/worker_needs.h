// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dtrain {

// Open files a shepherd needs for its workers: the launcher refuses by the inventory before
// anything starts, the shepherd checks again.
constexpr uint64_t OpenFilesFor(uint64_t workers) {
  // Two pipes, two spool files and their copies on the way to the agent, stdin, PMI, the process.
  constexpr uint64_t kPerWorker = 10;
  // Standard streams, the loop, the agent's socket, what one spawn needs meanwhile.
  constexpr uint64_t kOwn = 32;
  return workers * kPerWorker + kOwn;
}

// Processes: the workers, the shepherd and its agent.
constexpr uint64_t ProcessesFor(uint64_t workers) { return workers + 2; }

}  // namespace dtrain
