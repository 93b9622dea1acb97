// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/functional/function_ref.h"
#include "common/base/clock.h"

namespace dtrain::os {

// Whether `look` comes back within `bound`. A look at a file whose server is down may not, and
// nothing ends it: so another process does it, which is killed then. What `look` finds or changes
// is lost. For processes with one thread only, as it forks.
bool ReturnsWithin(Duration bound, absl::FunctionRef<void()> look);

}  // namespace dtrain::os
