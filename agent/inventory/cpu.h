// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "agent/inventory/roots.h"
#include "dtrain/v1/node.pb.h"

namespace dtrain::inventory {

// The NUMA nodes that have cpus, by id, with all their cpus, allowed or not. A machine or container
// that shows none is one node with `allowed`.
std::vector<v1::NumaNode> ReadNumaNodes(const Roots& roots, const std::vector<int>& allowed);

// Of each CPU from 0 on: the lowest CPU of its physical core; a CPU that is offline is its own.
// Empty where no core has two threads.
std::vector<uint32_t> ReadFirstSiblings(const Roots& roots);

// How many cores' time the cgroup of `pid` (0: this process) and those above it allow (cpu.max, or
// cpu.cfs_quota_us of cgroup v1), rounded up; 0: no limit.
uint32_t ReadCpuQuota(const Roots& roots, pid_t pid = 0);

// Main memory of the machine; 0 when unknown.
uint64_t MemoryBytes();

}  // namespace dtrain::inventory
