// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/cpu.h"

#include <dirent.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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

// The folder of a process's cgroup that limits processor time, below `top`.
struct CpuCgroup {
  std::string top, path;
  bool old = false;  // cgroup v1
};

// /proc/PID/cgroup has "0::/path" for v2, and "4:cpu,cpuacct:/path" where v1 has the controller.
CpuCgroup FindCpuCgroup(const Roots& roots, pid_t pid) {
  CpuCgroup found;
  const std::string process = pid == 0 ? "self" : absl::StrCat(pid);
  const auto text = os::ReadSmallFile(absl::StrCat(roots.procfs, "/", process, "/cgroup"));
  if (!text.ok()) return found;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), "cpu") != controllers.end()) {
      return {absl::StrCat(roots.sysfs, "/fs/cgroup/cpu"), std::string(parts[2]), true};
    }
    if (parts[0] != "0" || !parts[1].empty()) continue;
    found = {absl::StrCat(roots.sysfs, "/fs/cgroup"), std::string(parts[2]), false};
  }
  return found;
}

// The limit of one cgroup, in whole cores; 0: none.
uint32_t CpuQuotaOf(const std::string& folder, bool old) {
  const auto text = os::ReadSmallFile(folder + (old ? "/cpu.cfs_quota_us" : "/cpu.max"));
  if (!text.ok()) return 0;
  const std::vector<absl::string_view> words =
      absl::StrSplit(*text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  uint64_t quota = 0, period = 0;  // microseconds
  // "max" and -1 are no limit.
  if (words.empty() || !absl::SimpleAtoi(words[0], &quota) || quota == 0) return 0;
  if (old) {
    const auto own = os::ReadSmallFile(folder + "/cpu.cfs_period_us");
    if (!own.ok() || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*own), &period)) return 0;
  } else if (words.size() != 2 || !absl::SimpleAtoi(words[1], &period)) {
    return 0;
  }
  if (period == 0) return 0;
  const uint64_t cores = quota / period + (quota % period != 0 ? 1 : 0);
  return static_cast<uint32_t>(std::min<uint64_t>(cores, std::numeric_limits<uint32_t>::max()));
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

uint32_t ReadCpuQuota(const Roots& roots, pid_t pid) {
  auto [top, path, old] = FindCpuCgroup(roots, pid);
  uint32_t least = 0;
  if (top.empty()) return least;
  while (true) {
    // In a container the path may be the host's, and the mount's root our own cgroup.
    const uint32_t cores = CpuQuotaOf(path == "/" ? top : top + path, old);
    if (cores > 0 && (least == 0 || cores < least)) least = cores;
    const size_t slash = path.rfind('/');
    if (path.size() <= 1 || slash == std::string::npos) return least;
    path.resize(std::max<size_t>(slash, 1));
  }
}

uint64_t MemoryBytes() {
  struct sysinfo info = {};
  if (sysinfo(&info) != 0) return 0;
  return static_cast<uint64_t>(info.totalram) * info.mem_unit;
}

}  // namespace dtrain::inventory
