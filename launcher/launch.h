// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launcher/cli/options.h"
#include "launcher/faces/translation.h"

namespace dtrain {

// Carries out a launch, or shows what it would do, and returns the exit code. `translation`: of
// another launcher's command line; null: it was our own.
int Launch(cli::LaunchOptions options, const faces::Translation* translation);

}  // namespace dtrain
