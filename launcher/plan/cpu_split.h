// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtrain/v1/node.pb.h"

namespace dtrain::plan {

// The cores of one node this job may use.
struct Cores {
  std::vector<int> allowed;               // sorted
  std::vector<int> numa_order;            // the same, NUMA node by NUMA node, core by core
  std::vector<std::vector<int>> by_numa;  // NUMA nodes with a core that is allowed
};

// Fails when a list cannot be parsed.
absl::StatusOr<Cores> ReadCores(const v1::Inventory& inventory);

// `cpus` physical core by physical core: a run of them has as few cores as it can, so that two
// ranks whose CPUs follow each other share at most one. The kernel's numbers often go through all
// cores once, then through their second threads.
std::vector<int> CoreByCore(std::vector<int> cpus, const v1::Inventory& inventory);

// `a` and `b` sorted; what is in both.
std::vector<int> Intersect(const std::vector<int>& a, const std::vector<int>& b);

// `cpus` in `parts` runs, as even as possible, as cpulists; all empty (unpinned) when there are
// fewer cores than parts.
std::vector<std::string> SplitEvenly(const std::vector<int>& cpus, size_t parts);

}  // namespace dtrain::plan
