// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "agent/shepherd/shepherd_limits.h"

namespace dtrain::shepherd {

// The whole life of a shepherd process: takes one JobPart from the agent at the other end of
// `socket_fd` (which it takes over), runs the workers, and returns the process's exit code when
// none of them is left. `agent` is the agent's program, for other roles that a job may need. Must
// be called in a process that has one thread, from that thread: the workers die with it.
//
// Where `socket_fd` listens, dtrain-spawner has started this: the agent comes there, and the next
// descriptor says who that is (order.h).
int RunShepherd(int socket_fd, std::string agent = "/proc/self/exe",
                const ShepherdLimits& limits = {});

}  // namespace dtrain::shepherd
