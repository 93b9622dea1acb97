// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

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

}  // namespace dtrain::shepherd
