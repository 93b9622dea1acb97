// SPDX-License-Identifier: Apache-2.0
#include "common/os/scheduling.h"

#include <sched.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

namespace dtrain::os {
namespace {

bool interrupts_nobody = false;

struct CpuMask {
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set{nullptr, [](cpu_set_t* s) { CPU_FREE(s); }};
  size_t bytes = 0;
};

CpuMask NewCpuMask(size_t cpus) {
  CpuMask mask;
  mask.set.reset(CPU_ALLOC(cpus));
  mask.bytes = CPU_ALLOC_SIZE(cpus);
  return mask;
}

// Null: the kernel does not tell.
CpuMask OwnCpuMask() {
  constexpr size_t kMostCpus = 65536;  // ParseCpuList's limit as well
  // The kernel refuses, with EINVAL, a set smaller than its own.
  for (size_t count = 1024; count <= kMostCpus; count *= 2) {
    CpuMask mask = NewCpuMask(count);
    if (sched_getaffinity(0, mask.bytes, mask.set.get()) == 0) return mask;
    if (errno != EINVAL) break;
  }
  return {};
}

}  // namespace

void InterruptNobody() {
  // Otherwise somebody has chosen, with chrt(1) or a unit's CPUSchedulingPolicy=.
  if (sched_getscheduler(0) != SCHED_OTHER) return;
  const sched_param none = {};
  interrupts_nobody = sched_setscheduler(0, SCHED_BATCH, &none) == 0;
}

bool InterruptsNobody() { return interrupts_nobody; }

std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  const CpuMask mask = OwnCpuMask();
  for (size_t cpu = 0; mask.set != nullptr && cpu < 8 * mask.bytes; ++cpu) {
    if (CPU_ISSET_S(cpu, mask.bytes, mask.set.get())) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

std::vector<int> PossibleCpus() {
  const CpuMask mask = OwnCpuMask();
  if (mask.set == nullptr) return {};
  CpuMask all = NewCpuMask(8 * mask.bytes);
  memset(all.set.get(), 0xff, all.bytes);
  if (sched_setaffinity(0, all.bytes, all.set.get()) != 0) return AllowedCpus();
  const std::vector<int> possible = AllowedCpus();
  (void)sched_setaffinity(0, mask.bytes, mask.set.get());
  return possible;
}

}  // namespace dtrain::os
