// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace dtrain::inventory {

// `gpuwatch MS UUID...`, the child of GpuWatches: writes GpuStates to its standard output, a
// socket, at the start, every `period`, and at once when the driver reports an error of one of
// these GPUs. Ends when nobody reads that. Returns an exit code where nothing can be watched.
// Errors come from NVML's events, which need no privilege, and from the kernel log, as XidWatch.
int WatchGpus(std::chrono::milliseconds period, const std::vector<std::string>& uuids,
              const std::string& kernel_log = "/dev/kmsg");

}  // namespace dtrain::inventory
