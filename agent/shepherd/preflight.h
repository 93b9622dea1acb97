// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/shepherd/worker_env.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// Whether this process may have the descriptors and processes that the part needs, before the
// first worker is started. Raises the own limit of open files as far as allowed, where needed.
std::optional<v1::NodeFailure> CheckResources(const v1::JobPart& part);

// Whether the working directory and the program answer at all, as on a file server that is down
// they do not. What else is wrong with them is told when they are used. Takes seconds when they do
// not.
std::optional<v1::NodeFailure> CheckFiles(const v1::JobPart& part);

// Whether the scripts that interpreters are told to run are there, as each rank would find that out
// only when it runs.
std::optional<v1::NodeFailure> CheckScripts(const v1::JobPart& part,
                                            const std::vector<std::string>& agent_env);

// Whether the part has more workers than this process may use processors.
bool IsCrowded(const v1::JobPart& part);
// Looks into the node's files.
NodeTraits ReadTraits(const v1::JobPart& part, const std::vector<std::string>& agent_env);

// The resource limits of each worker, from ours as they were when the process began, and the
// launcher's.
class WorkerLimits {
 public:
  struct Chosen {
    std::vector<std::pair<int, rlimit>> limits;
    std::string trouble;  // which are lower than the launcher's: "open files: 4096, not 65536"
  };
  WorkerLimits();  // before CheckResources
  Chosen For(const v1::JobPart& part) const;

 private:
  std::map<int, rlimit> ours_;
};

// What is to be said of a process that was to have `wanted`, as the launcher has, and has `nice`;
// empty: nothing.
std::string NiceTrouble(int wanted, int nice);

}  // namespace dtrain::shepherd
