// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "launcher/reference/man.h"

// dtrain completion, man: what is made from the definitions of all commands.
namespace dtrain::reference {

bool IsCommand(absl::string_view word);

// `args` begins with the command. Prints to stdout and stderr and returns the exit code.
int RunCommand(const std::vector<std::string>& args, const Release& release);

}  // namespace dtrain::reference
