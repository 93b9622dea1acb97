// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/containers/runtime.h"

namespace dtrain::containers {

// A variable of the node or of its file system, like PATH or PYTHONHOME: the image has its own.
bool IsOfHost(absl::string_view name);

// The variables of a worker on their way into its container. No value is ever on a command line:
// those of others are there to be read.
struct Carried {
  std::vector<std::string> client;  // environment of the runtime's own program, "NAME=value"
  std::vector<std::string> names;   // of variables in there that shall go in
  std::string file;                 // lines "NAME=value" of those that the program needs otherwise
};

// `worker`: its whole environment, were it on the node. `node`: what the node gave its agent.
// `given`: names that the user gave with -x, which go in whatever they are.
absl::StatusOr<Carried> Carry(const Chosen& chosen, const std::vector<std::string>& worker,
                              const std::vector<std::string>& node,
                              const std::set<std::string>& given);

// For programs of the runtime that run no worker.
std::vector<std::string> ClientEnvironment(const std::vector<std::string>& node);

// Variables by which the runtime itself learns of the GPUs, for the worker's environment.
std::vector<std::string> GpuVariables(Runtime runtime, const std::vector<std::string>& uuids);

// For ranks that all have the same pid, each in a PID namespace of its own, unless set.
std::vector<std::string> NamespaceVariables(Runtime runtime);

}  // namespace dtrain::containers
