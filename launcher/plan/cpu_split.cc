// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/cpu_split.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/cpulist.h"

namespace dtrain::plan {

std::vector<int> Intersect(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

std::vector<int> CoreByCore(std::vector<int> cpus, const v1::Inventory& inventory) {
  const auto core = [&](int cpu) {
    return cpu < inventory.first_siblings_size() ? static_cast<int>(inventory.first_siblings(cpu))
                                                 : cpu;
  };
  std::sort(cpus.begin(), cpus.end(),
            [&](int a, int b) { return std::make_pair(core(a), a) < std::make_pair(core(b), b); });
  return cpus;
}

absl::StatusOr<Cores> ReadCores(const v1::Inventory& inventory) {
  Cores cores;
  absl::StatusOr<std::vector<int>> allowed = ParseCpuList(inventory.allowed_cpus());
  if (!allowed.ok()) return allowed.status();
  cores.allowed = *std::move(allowed);
  std::vector<int> left = cores.allowed;
  for (const v1::NumaNode& node : inventory.numa_nodes()) {
    const absl::StatusOr<std::vector<int>> list = ParseCpuList(node.cpulist());
    if (!list.ok()) return list.status();
    std::vector<int> mine = Intersect(*list, left);
    if (mine.empty()) continue;
    std::vector<int> rest;
    std::set_difference(left.begin(), left.end(), mine.begin(), mine.end(),
                        std::back_inserter(rest));
    left = std::move(rest);
    const std::vector<int> ordered = CoreByCore(mine, inventory);
    cores.numa_order.insert(cores.numa_order.end(), ordered.begin(), ordered.end());
    cores.by_numa.push_back(std::move(mine));
  }
  left = CoreByCore(std::move(left), inventory);
  cores.numa_order.insert(cores.numa_order.end(), left.begin(), left.end());
  return cores;
}

std::vector<std::string> SplitEvenly(const std::vector<int>& cpus, size_t parts) {
  std::vector<std::string> lists(parts);
  if (parts > cpus.size()) return lists;
  for (size_t i = 0; i < parts; ++i) {
    std::vector<int> mine(cpus.begin() + cpus.size() * i / parts,
                          cpus.begin() + cpus.size() * (i + 1) / parts);
    std::sort(mine.begin(), mine.end());
    lists[i] = FormatCpuList(mine);
  }
  return lists;
}

}  // namespace dtrain::plan
