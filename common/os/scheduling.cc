// SPDX-License-Identifier: Apache-2.0
#include "common/os/scheduling.h"

#include <sched.h>

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

}  // namespace dtrain::os
