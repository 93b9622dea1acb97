// SPDX-License-Identifier: Apache-2.0
#include "spawner/limits.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "spawner/cgroups.h"

namespace dtrain::spawner {
namespace {

constexpr uint64_t kLeast = uint64_t{2} << 30;  // for everything but jobs

std::string Parent(const std::string& path) { return path.substr(0, path.rfind('/')); }

// One by one: what is not there does not keep the other from being given, or taken away ("-pids").
bool SetForChildren(const std::string& path, const char* memory = "+memory",
                    const char* pids = "+pids") {
  const std::string file = path + "/cgroup.subtree_control";
  return static_cast<int>(WriteFile(file, memory)) + static_cast<int>(WriteFile(file, pids)) == 2;
}

// True also without its controller.
bool Limit(const std::string& file, uint64_t value) {
  return access(file.c_str(), F_OK) != 0 || WriteFile(file, std::to_string(value));
}

}  // namespace

bool StopLimiting(const std::string& jobs) {
  for (const std::string& user : Folders(jobs)) {
    if (!SetForChildren(jobs + "/" + user, "-memory", "-pids")) return false;
  }
  return SetForChildren(jobs, "-memory", "-pids") &&
         SetForChildren(Parent(jobs), "-memory", "-pids");
}

std::string LimitJobs(const std::string& jobs) {
  SetForChildren(Parent(jobs));
  SetForChildren(jobs);
  const uint64_t all =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t kept = std::max(kLeast, all / 100 * 3);
  std::string missing;
  // A machine of less than 4 GiB needs what it has.
  const bool memory = access((jobs + "/memory.max").c_str(), F_OK) == 0 &&
                      (all < 2 * kLeast || Limit(jobs + "/memory.max", all - kept));
  if (!memory) missing = " memory";
  if (access((jobs + "/pids.max").c_str(), F_OK) != 0) missing += " pids";
  return missing.empty() ? "" : "no controller of cgroups of version 2 here for" + missing;
}

bool LimitJob(const std::string& path, const Limits& limits) {
  const std::string user = Parent(path);
  SetForChildren(user);
  // Where it is not known, it wraps to more than any limit.
  const auto half = strtoul(ReadFile("/proc/sys/kernel/pid_max", 32).c_str(), nullptr, 10) / 2 - 1;
  return Limit(user + "/pids.max", std::min(Limits::kProcessesOfUser, half)) &&
         Limit(path + "/pids.max", std::min(Limits::kProcessesOfJob, half)) &&
         (limits.job_memory == 0 || Limit(path + "/memory.max", limits.job_memory));
}

bool ParseSize(const std::string& text, uint64_t* out) {
  char* end = nullptr;
  if (text.empty() || text[0] < '0' || text[0] > '9' || text.size() > 15) return false;
  const uint64_t number = strtoull(text.c_str(), &end, 10);
  static constexpr char kUnits[] = "KMGT";
  const char* const unit = *end == '\0' ? nullptr : strchr(kUnits, *end);
  if (*end != '\0' && (unit == nullptr || end[1] != '\0')) return false;
  const int shift = unit == nullptr ? 0 : 10 * static_cast<int>(unit - kUnits + 1);
  return number > 0 && number < (uint64_t{1} << 60) >> shift && (*out = number << shift) > 0;
}

}  // namespace dtrain::spawner
