// SPDX-License-Identifier: Apache-2.0
#include "common/os/scheduling.h"

#include <sched.h>

#include <cerrno>
#include <cstddef>
#include <memory>

namespace dtrain::os {
namespace {

bool interrupts_nobody = false;

}  // namespace

void InterruptNobody() {
  // Otherwise somebody has chosen, with chrt(1) or a unit's CPUSchedulingPolicy=.
  if (sched_getscheduler(0) != SCHED_OTHER) return;
  const sched_param none = {};
  interrupts_nobody = sched_setscheduler(0, SCHED_BATCH, &none) == 0;
}

bool InterruptsNobody() { return interrupts_nobody; }

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

}  // namespace dtrain::os
