// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/strings/string_view.h"

namespace dtrain {

// What `dtrain launch` exits with. A worker's own code 1-125 is passed on verbatim; 200 and up are
// dtrain's own faults, never to be confused with a worker's. docs/exit-codes.md explains each.
enum ExitCode : int {
  kExitOk = 0,
  kExitUsage = 2,  // bad command line or hostfile
  kExitNotExecutable = 126,
  kExitNotFound = 127,
  kExitSignalBase = 128,   // + signal number
  kExitInterrupted = 130,  // Ctrl-C
  kExitTerminated = 143,   // SIGTERM
  kExitStartAgents = 200,
  kExitRendezvous = 201,
  kExitNodeLost = 202,
  kExitAgentLost = 203,
  kExitCleanup = 204,
  kExitStalled = 205,
  kExitNotAuthorised = 206,
  kExitState = 207,
  kExitRestarts = 208,
  kExitTimeLimit = 209,
  kExitStillRunning = 210,  // of `dtrain wait`, and of a launch that was detached
};

// "SIGTERM"; empty for numbers without a name, real-time signals among them.
absl::string_view SignalName(int signal);

}  // namespace dtrain
