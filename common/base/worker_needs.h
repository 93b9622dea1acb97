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

// Open files of a launcher: to each node a connection, gRPC on it and, while it is made, the pipes
// of an ssh; the loop and gRPC itself, which ends the process where it gets none.
constexpr uint64_t OpenFilesForLaunch(uint64_t nodes) { return 24 + 8 * nodes; }

// Processes: the workers, the shepherd and its agent.
constexpr uint64_t ProcessesFor(uint64_t workers) { return workers + 2; }

}  // namespace dtrain
