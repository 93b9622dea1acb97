// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "launcher/detached/job_folder.h"

namespace dtrain::detached {

// Has whatever launcher has the job leave it, as when its machine is shut down: the workers run on,
// and nobody starts one again. Ok also where none has it. FAILED_PRECONDITION: it is a process of
// another machine. DEADLINE_EXCEEDED. Blocks.
absl::Status HaveLauncherLeave(const JobFolder& job, TimePoint deadline);

}  // namespace dtrain::detached
