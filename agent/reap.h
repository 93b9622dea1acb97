// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "common/os/process_tree.h"
#include "common/os/shared_memory.h"

namespace dtrain::agent {

// A process of a job whose shepherd is gone. Nobody will end it but us.
struct Leftover {
  os::ProcessInfo process;
  uid_t uid = 0;
  std::string job_id;
  std::string shepherd;  // os::ProcessMark of it
  std::string command;
};

// The number, when it has no name.
std::string UserName(uid_t uid);

// Of all users when we are root, else our own.
std::vector<Leftover> FindLeftovers();

// Shared memory of such a job that nobody uses.
struct LeftMemory {
  uid_t uid = 0;
  std::vector<os::NamedSharedMemory> objects;
};
// Of all users when we are root. `remove`: it is removed.
std::vector<LeftMemory> FindLeftMemory(bool remove);

struct Reaped {
  std::vector<Leftover> found;
  std::vector<LeftMemory> memory;
  std::vector<Leftover> left;  // that could not be ended within two seconds
};
// Ends them, and what they start meanwhile, by SIGKILL. Blocks for as long as that takes.
Reaped ReapLeftovers();

// "pid 4711 (python3) of job dtrain-1f, user alice"
std::string Describe(const Leftover& leftover);
// "shared memory of jobs of user alice: 3 objects, 1.2 GB"
std::string Describe(const LeftMemory& memory);

// `dtrain-agent reap`: the exit code.
int RunReap(bool dry_run);

}  // namespace dtrain::agent
