// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/cpu.h"

#include <dirent.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

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

// Empty: it cannot be read.
std::vector<int> ReadList(const std::string& path) {
  const absl::StatusOr<std::string> text = os::ReadSmallFile(path);
  if (!text.ok()) return {};
  absl::StatusOr<std::vector<int>> cpus = ParseCpuList(*text);
  return cpus.ok() ? *std::move(cpus) : std::vector<int>();
}

}  // namespace

std::vector<v1::NumaNode> ReadNumaNodes(const Roots& roots, const std::vector<int>& allowed) {
  const std::string folder = absl::StrCat(roots.sysfs, "/devices/system/node");
  std::vector<v1::NumaNode> nodes;
  for (uint32_t id : NodeIds(folder)) {
    const std::vector<int> cpus = ReadList(absl::StrCat(folder, "/node", id, "/cpulist"));
    // Nodes of memory alone (GPU memory, CXL) have no cpus to pin to.
    if (cpus.empty()) continue;
    v1::NumaNode& node = nodes.emplace_back();
    node.set_id(id);
    node.set_cpulist(FormatCpuList(cpus));
  }
  if (nodes.empty()) nodes.emplace_back().set_cpulist(FormatCpuList(allowed));
  return nodes;
}

std::vector<uint32_t> ReadFirstSiblings(const Roots& roots) {
  const std::string folder = absl::StrCat(roots.sysfs, "/devices/system/cpu");
  // Without this file (Linux before 4.19) each core is asked.
  const auto active = os::ReadSmallFile(folder + "/smt/active");
  if (active.ok() && absl::StripAsciiWhitespace(*active) == "0") return {};
  const std::vector<int> online = ReadList(folder + "/online");
  if (online.empty()) return {};
  std::vector<uint32_t> firsts(static_cast<size_t>(online.back()) + 1);
  std::iota(firsts.begin(), firsts.end(), 0);
  bool shared = false;
  for (int cpu : online) {
    if (firsts[cpu] != static_cast<uint32_t>(cpu)) continue;  // a core that was seen
    const std::vector<int> core =
        ReadList(absl::StrCat(folder, "/cpu", cpu, "/topology/thread_siblings_list"));
    for (int sibling : core) {
      if (sibling <= cpu || sibling > online.back()) continue;
      firsts[sibling] = static_cast<uint32_t>(cpu);
      shared = true;
    }
  }
  return shared ? firsts : std::vector<uint32_t>();
}

uint64_t MemoryBytes() {
  struct sysinfo info = {};
  if (sysinfo(&info) != 0) return 0;
  return static_cast<uint64_t>(info.totalram) * info.mem_unit;
}

}  // namespace dtrain::inventory
