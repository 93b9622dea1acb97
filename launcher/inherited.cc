// SPDX-License-Identifier: Apache-2.0
#include "launcher/inherited.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/cpulist.h"
#include "common/os/process_tree.h"
#include "common/os/scheduling.h"

namespace dtrain {
namespace {

// The kernel's own, so that nobody need have chosen them.
constexpr rlim_t kUsualOpenFiles = 1024;
constexpr rlim_t kUsualStack = 8 << 20;

// Those of a machine for logins would end training on others.
struct OtherLimit {
  __rlimit_resource resource;
  absl::string_view text;
};
constexpr OtherLimit kOthers[] = {{RLIMIT_AS, "address space (ulimit -v)"},
                                  {RLIMIT_CPU, "CPU time (ulimit -t)"},
                                  {RLIMIT_DATA, "data (ulimit -d)"},
                                  {RLIMIT_FSIZE, "file size (ulimit -f)"}};

rlim_t Soft(__rlimit_resource resource) {
  rlimit limit{};
  getrlimit(resource, &limit);
  return limit.rlim_cur;
}

void PassOn(__rlimit_resource resource, bool exact, v1::Inherited& out) {
  v1::SoftLimit& limit = *out.add_limits();
  limit.set_resource(static_cast<uint32_t>(resource));
  limit.set_soft(Soft(resource));
  limit.set_exact(exact);
}

}  // namespace

v1::Inherited OwnInherited() {
  v1::Inherited out;
  const mode_t mask = umask(0);
  umask(mask);
  out.set_umask(mask);
  out.set_nice(getpriority(PRIO_PROCESS, 0));
  if (Soft(RLIMIT_NOFILE) != kUsualOpenFiles) PassOn(RLIMIT_NOFILE, /*exact=*/true, out);
  if (Soft(RLIMIT_STACK) != kUsualStack) PassOn(RLIMIT_STACK, /*exact=*/false, out);
  for (const OtherLimit& each : kOthers) {
    if (Soft(each.resource) != RLIM_INFINITY) out.add_other_limits(std::string(each.text));
  }
  const std::vector<int> mine = os::AllowedCpus();
  if (mine.size() < os::PossibleCpus().size()) out.set_cpus(FormatCpuList(mine));
  out.set_boot_id(os::BootId());
  struct stat network = {};
  if (stat("/proc/self/ns/net", &network) == 0) out.set_network_namespace(network.st_ino);
  return out;
}

}  // namespace dtrain
