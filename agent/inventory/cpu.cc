// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/cpu.h"

#include <dirent.h>
#include <sched.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/cpulist.h"
#include "common/os/fd.h"

namespace dtrain::inventory {
namespace {

std::vector<uint32_t> NodeIds(const std::string& folder) {
  std::vector<uint32_t> ids;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()), closedir);
  if (dir == nullptr) return ids;
  while (const dirent* entry = readdir(dir.get())) {
    absl::string_view name = entry->d_name;
    uint32_t id = 0;
    // Others there: online, possible, has_cpu ...
    if (absl::StartsWith(name, "node") && absl::SimpleAtoi(name.substr(4), &id)) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace

std::vector<int> AllowedCpus() {
  constexpr size_t kMostCpus = 65536;  // ParseCpuList's limit as well
  std::vector<int> cpus;
  // The kernel refuses, with EINVAL, a set smaller than its own.
  for (size_t count = 1024; count <= kMostCpus; count *= 2) {
    std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(count),
                                                         [](cpu_set_t* s) { CPU_FREE(s); });
    size_t bytes = CPU_ALLOC_SIZE(count);
    if (sched_getaffinity(0, bytes, set.get()) == 0) {
      for (size_t cpu = 0; cpu < count; ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, set.get())) cpus.push_back(static_cast<int>(cpu));
      }
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  return cpus;
}

std::vector<v1::NumaNode> ReadNumaNodes(const Roots& roots, const std::vector<int>& allowed) {
  const std::string folder = absl::StrCat(roots.sysfs, "/devices/system/node");
  std::vector<v1::NumaNode> nodes;
  for (uint32_t id : NodeIds(folder)) {
    absl::StatusOr<std::string> text =
        os::ReadSmallFile(absl::StrCat(folder, "/node", id, "/cpulist"));
    if (!text.ok()) continue;
    absl::StatusOr<std::vector<int>> cpus = ParseCpuList(*text);
    // Nodes of memory alone (GPU memory, CXL) have no cpus to pin to.
    if (!cpus.ok() || cpus->empty()) continue;
    v1::NumaNode& node = nodes.emplace_back();
    node.set_id(id);
    node.set_cpulist(FormatCpuList(*cpus));
  }
  if (nodes.empty()) nodes.emplace_back().set_cpulist(FormatCpuList(allowed));
  return nodes;
}

uint64_t MemoryBytes() {
  struct sysinfo info = {};
  if (sysinfo(&info) != 0) return 0;
  return static_cast<uint64_t>(info.totalram) * info.mem_unit;
}

}  // namespace dtrain::inventory
