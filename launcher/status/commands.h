// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

// dtrain ps, status, logs, stop, top, page: ask the launchers of this user's jobs on this machine,
// or the agents of nodes; dtrain nodes asks these.
namespace dtrain::status {

// `args` begins with the command. Prints to stdout and stderr and returns the exit code.
int RunCommand(const std::vector<std::string>& args);

}  // namespace dtrain::status
