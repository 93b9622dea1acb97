// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "launcher/cli/options.h"
#include "launcher/cli/page.h"

namespace dtrain::env {

cli::Page EnvPage();

// `dtrain env ARGS`: launches a job of the flags in ARGS whose workers print their environment, and
// prints that of one rank. Returns the exit code.
int Run(const std::vector<std::string>& args, const cli::Surroundings& surroundings);

}  // namespace dtrain::env
