// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "launcher/hosts/allocation.h"

namespace dtrain::hosts {

// The allocation of the Grid Engine job we are in; PE_HOSTFILE is known to be set, which is so in
// parallel environments only.
absl::StatusOr<Allocation> ReadGridEngine(const EnvLookup& env, const FileReader& read);

}  // namespace dtrain::hosts
