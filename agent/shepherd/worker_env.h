// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// Numbers of descriptors in the worker; -1: none.
struct WorkerFds {
  int pmi = -1;   // its end of the PMI socket
  int page = -1;  // the memory it shares with the shepherd
};

// The whole environment of one worker, "NAME=value" each, sorted by name. Pure.
//
// From weak to strong: what the node gave the agent (all of it, or only the host-bound names),
// what the user forwarded, minus what an outer launcher left there, then the worker's own
// variables; a name the user gave with -x is never replaced. docs/environment.md documents every
// variable.
std::vector<std::string> BuildWorkerEnv(const v1::JobPart& part, const v1::WorkerSpec& worker,
                                        const std::vector<std::string>& agent_env, WorkerFds fds);

}  // namespace dtrain::shepherd
