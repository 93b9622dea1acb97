// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "common/base/clock.h"

namespace dtrain::shepherd {

// How long a shepherd waits. Tests wait less.
struct ShepherdLimits {
  // Once the system goes down: for an agent that is restarted this is enough. When the machine goes
  // down none comes, and its service manager waits for all processes.
  Duration going_down = std::chrono::seconds(5);
  // A checkpoint that has not changed for so long is taken for complete: longer than an NFS client
  // believes what it knows of a file (acregmin, 3 s).
  Duration still = std::chrono::seconds(4);
};

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
