// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/strings/string_view.h"

// Which environment variables do not travel as they are. docs/environment.md lists them for users.
namespace dtrain {

// Says something about the machine or login session it was set in, so that every node has its own:
// never forwarded, a worker gets the node's.
bool IsHostBound(absl::string_view name);

// Set by an outer launcher for its own processes: would give a worker a wrong rank. Removed before
// ours are set, unless the user gave the name with -x. Facts of an allocation (SLURM_JOB_ID,
// SLURM_JOB_NODELIST) stay.
bool IsScrubbed(absl::string_view name);

}  // namespace dtrain
