// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"

// dtrain attach, wait, history, show, rerun, rm, prune: detached jobs, and others that have ended,
// from their folders.
namespace dtrain::history {

// Runs the words of a launch, and returns its exit code.
using Launch = absl::FunctionRef<int(const std::vector<std::string>& words)>;

// `args` begins with the command. Prints to stdout and stderr and returns the exit code.
int RunCommand(const std::vector<std::string>& args, Launch launch);

}  // namespace dtrain::history
