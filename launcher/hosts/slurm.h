// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "launcher/hosts/allocation.h"

namespace dtrain::hosts {

// The allocation of the Slurm job we are in; SLURM_JOB_ID is known to be set.
absl::StatusOr<Allocation> ReadSlurm(const EnvLookup& env);

}  // namespace dtrain::hosts
