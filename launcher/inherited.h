// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "dtrain/v1/job.pb.h"

namespace dtrain {

// What workers have as if this process itself had started them, and what of it cannot be given to
// those of other hosts (ADR 59). Before it raises limits of its own or makes a thread.
v1::Inherited OwnInherited();

}  // namespace dtrain
