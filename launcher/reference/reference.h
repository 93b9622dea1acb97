// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "launcher/reference/commands.h"
#include "launcher/reference/man.h"

// dtrain completion, man: what is made from the definitions of all commands.
namespace dtrain::reference {

// `args` begins with the command, one of `commands`. Prints to stdout and stderr and returns the
// exit code.
int RunCommand(const std::vector<Command>& commands, const std::vector<std::string>& args,
               const Release& release);

}  // namespace dtrain::reference
