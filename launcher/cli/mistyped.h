// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "launcher/cli/words.h"

namespace dtrain::cli {

// What can be understood of a command line of dtrain launch, and hardly is what was meant: a flag
// whose dash is not one, and flags of dtrain behind the command. An error where the job would run
// against the user's will; else `warning` says it, and stays empty where all is well. A command
// behind "--" may have any words.
absl::Status CheckMistyped(const Words& words, std::string* warning);

}  // namespace dtrain::cli
