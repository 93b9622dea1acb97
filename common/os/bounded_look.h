// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "common/base/clock.h"

namespace dtrain::os {

// Whether `look` comes back within `bound`. A look at a file whose server is down may not, and
// nothing ends it: so another process does it, which is killed then. What `look` finds or changes
// is lost. It forks: other threads of this process hold no lock that `look` takes.
bool ReturnsWithin(Duration bound, absl::FunctionRef<void()> look);

// The same without giving up: returns once `look` has come back. Calls `late` if that takes longer
// than `bound`. Meanwhile a signal ends this process, which it might not if we looked ourselves.
void AwaitReturn(Duration bound, absl::FunctionRef<void()> look, absl::FunctionRef<void()> late);

// Whether the kernel has what lies at `path` at hand, on a disk of this machine or in its memory: a
// look at it waits for no server. Does not wait itself. False also if nothing is there, or if it
// cannot tell.
bool IsAtHand(const std::string& path);

// Likewise for a caller that only wants to know whether it must expect to wait: true also on an
// overlay, as in a container, whose layers are as near as the kernel can tell, and for a missing
// file whose folder is at hand.
bool AnswersAtOnce(const std::string& path);

}  // namespace dtrain::os
