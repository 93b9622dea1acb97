// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/containers/runtime.h"

// The looks at the node that the rest of this folder needs.
namespace dtrain::containers {

// Finds executables on the PATH of that environment.
FindExecutable FindOnPathOf(const std::vector<std::string>& environment);

// Whether podman finds its init (catatonit) in one of its places.
bool PodmanHasInit();

// Files in /dev that ranks need beside those of GPUs: InfiniBand's.
std::vector<std::string> NetworkDevices();

// No process may have more: podman lowers its own limit of processes to it.
uint64_t MostProcesses();

}  // namespace dtrain::containers
