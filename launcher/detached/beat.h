// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/functional/function_ref.h"

namespace dtrain::detached {

// Called by what may take long in a folder, whenever the folder has just answered, or the wait is
// for something else. So a watch tells much work from a file server that is down.
using Beat = absl::FunctionRef<void()>;

inline void NoBeat() {}

}  // namespace dtrain::detached
