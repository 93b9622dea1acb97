// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "common/base/clock.h"

namespace dtrain::os {

// Whether `look` comes back within `bound`. A look at a file whose server is down may not, and
// nothing ends it: so another process does it, which is killed then. What `look` finds or changes
// is lost. For processes with one thread only, as it forks.
bool ReturnsWithin(Duration bound, absl::FunctionRef<void()> look);

// The same without giving up: returns once `look` has come back. Calls `late` if that takes longer
// than `bound`. Meanwhile a signal ends this process, which it might not if we looked ourselves.
void AwaitReturn(Duration bound, absl::FunctionRef<void()> look, absl::FunctionRef<void()> late);

// Whether the kernel has what lies at `path` at hand, and on a disk: then who looks there waits for
// no server. Does not wait itself. False also where there is nothing, and of what it cannot tell.
bool IsAtHand(const std::string& path);

}  // namespace dtrain::os
