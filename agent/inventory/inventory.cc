// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/inventory.h"

#include <pwd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "agent/inventory/amd_gpus.h"
#include "agent/inventory/cpu.h"
#include "agent/inventory/limits.h"
#include "agent/inventory/network.h"
#include "common/base/cpulist.h"
#include "common/base/text.h"
#include "common/os/cgroup.h"
#include "common/os/fd.h"
#include "common/os/scheduling.h"

namespace dtrain::inventory {
namespace {

uint64_t LimitValue(rlim_t limit) {
  return limit == RLIM_INFINITY ? std::numeric_limits<uint64_t>::max() : limit;
}

rlimit Limits(int resource) {
  rlimit limit = {};
  getrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
  return limit;
}

void ReadIdentity(const Roots& roots, v1::Inventory& out) {
  utsname names = {};
  if (uname(&names) == 0) {
    out.set_hostname(Escape(names.nodename));
    out.set_kernel(names.release);
    out.set_machine(names.machine);
  }
  absl::StatusOr<std::string> boot_id =
      os::ReadSmallFile(absl::StrCat(roots.procfs, "/sys/kernel/random/boot_id"));
  if (boot_id.ok()) {
    out.set_boot_id(std::string(absl::StripAsciiWhitespace(*boot_id)));
  } else {
    out.add_warnings(
        absl::StrCat("the kernel's boot id is unknown, so whether two host names mean ",
                     "this one machine cannot be checked: ", boot_id.status().message()));
  }
  struct stat netns = {};
  if (stat(absl::StrCat(roots.procfs, "/self/ns/net").c_str(), &netns) == 0) {
    out.set_network_namespace(netns.st_ino);
  }
  out.set_uid(getuid());
  out.set_user(OwnUserName());
}

void ReadProcessors(const Roots& roots, v1::Inventory& out) {
  std::vector<int> allowed = os::AllowedCpus();
  if (allowed.empty()) {
    long online = std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
    for (int cpu = 0; cpu < online; ++cpu) allowed.push_back(cpu);
    out.add_warnings("the kernel does not say which cpus may be used; using all that are online");
  }
  out.set_allowed_cpus(FormatCpuList(allowed));
  for (v1::NumaNode& node : ReadNumaNodes(roots, allowed)) {
    *out.add_numa_nodes() = std::move(node);
  }
  for (uint32_t first : ReadFirstSiblings(roots)) out.add_first_siblings(first);
  out.set_cpu_quota(ReadCpuQuota(roots));
  out.set_amd_gpus(CountAmdGpus(roots));
  out.set_memory_bytes(MemoryBytes());
}

}  // namespace

// The name as /etc/passwd has it. Not through NSS: a directory server that does not answer would
// hold up the whole agent, for a name that is only shown to people.
std::string OwnUserName() {
  const uid_t uid = getuid();
  std::unique_ptr<FILE, int (*)(FILE*)> file(fopen("/etc/passwd", "re"), fclose);
  if (file != nullptr) {
    passwd entry;
    passwd* found = nullptr;
    char buffer[4096];
    while (fgetpwent_r(file.get(), &entry, buffer, sizeof(buffer), &found) == 0) {
      if (found->pw_uid == uid) return Escape(found->pw_name);
    }
  }
  for (const char* variable : {"LOGNAME", "USER"}) {
    const char* value = getenv(variable);
    if (value != nullptr && *value != '\0') return Escape(value);
  }
  return absl::StrCat(uid);
}

v1::Inventory ReadInventory(const Roots& roots) {
  v1::Inventory out;
  ReadIdentity(roots, out);
  ReadProcessors(roots, out);
  absl::StatusOr<std::vector<v1::Interface>> interfaces = ReadInterfaces();
  if (interfaces.ok()) {
    for (v1::Interface& interface : *interfaces) *out.add_interfaces() = std::move(interface);
  } else {
    out.add_warnings(std::string(interfaces.status().message()));
  }
  // The shepherd raises its own soft limit of open files as far as it needs.
  out.set_open_files_limit(LimitValue(Limits(RLIMIT_NOFILE).rlim_max));
  out.set_processes_limit(LimitValue(Limits(RLIMIT_NPROC).rlim_cur));
  out.set_cgroup_writable(os::FindWritableCgroup().ok());
  for (std::string& warning : WarningsOf(ReadSharedMemory())) {
    out.add_warnings(std::move(warning));
  }
  // Last, so that its age is the way to the launcher alone.
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  out.set_clock_unix_nanos(static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec);
  return out;
}

}  // namespace dtrain::inventory
