// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "launcher/hosts/allocation.h"

namespace dtrain::hosts {

// The allocation of the Slurm job we are in; SLURM_JOB_ID is known to be set. Of SLURM_HOSTFILE, if
// it is set, each line is where one more rank goes, as for srun.
absl::StatusOr<Allocation> ReadSlurm(const EnvLookup& env, const FileReader& read);

}  // namespace dtrain::hosts
