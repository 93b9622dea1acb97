// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dtrain::session {

// Processes of jobs that SIGKILL does not end. While one of them is there the node takes no jobs:
// it has what a next job would be given, and what holds it in the kernel, a driver or a file
// system, would hold the next job's too. Loop thread.
class Quarantine {
 public:
  void Add(const std::string& job_id, const std::string& owner, const std::vector<pid_t>& pids);
  // Why the node takes no jobs; empty: it does. Forgets those that have ended meanwhile.
  std::string Why();

 private:
  struct Stuck {
    pid_t pid;
    uint64_t start_time;
    std::string job_id;
    std::string owner;
  };
  std::vector<Stuck> stuck_;
};

}  // namespace dtrain::session
