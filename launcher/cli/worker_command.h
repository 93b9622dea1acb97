// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "launcher/cli/options.h"

namespace dtrain::cli {

// What a worker executes for the words after the flags, as they are unless they name Python code:
// a module (-m), or a script, which is a first word that ends in .py and that this machine cannot
// execute itself. Those get an interpreter that does not buffer: python3, or what PYTHON_EXEC
// names. `directory` is the workers'; `words` may be empty.
std::vector<std::string> WorkerCommand(std::vector<std::string> words, bool module,
                                       const std::string& directory,
                                       const Surroundings& surroundings);

}  // namespace dtrain::cli
