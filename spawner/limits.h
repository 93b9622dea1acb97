// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace dtrain::spawner {

// What users' processes may take of a node, so that one who forks without end or fills the memory
// harms his own jobs. A controller that the kernel does not give to cgroups of version 2 limits
// nothing.
struct Limits {
  // At most, and less than half of what the kernel has numbers for: others can always start some.
  static constexpr uint64_t kProcessesOfUser = 65'536, kProcessesOfJob = 32'768;
  bool required = false;    // rather start nothing than without them
  uint64_t job_memory = 0;  // bytes; 0: as much as all jobs may have
};

// Lets the cgroup `jobs`, and what is below, have the controllers, and leaves 2 GiB or 3 % of the
// memory, whichever is more, to everything else. As no process may be started in a cgroup whose
// children have controllers, there would be no next spawner, unless it is started in a leaf of its
// own or StopLimiting comes before it. Returns what is missing.
std::string LimitJobs(const std::string& jobs);
// Takes the controllers away again from `jobs` and what is below, and with them all limits. False:
// errno says why.
bool StopLimiting(const std::string& jobs);
// Of a job's cgroup, jobs/uUID/JOB.ATTEMPT, and its user's. False: errno says why.
bool LimitJob(const std::string& path, const Limits& limits);

// "512M", "64G": bytes, or with K, M, G or T. False: it is none, or 0.
bool ParseSize(const std::string& text, uint64_t* out);

}  // namespace dtrain::spawner
