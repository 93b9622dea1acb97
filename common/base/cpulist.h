// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain {

// The kernel's list format, as in /sys/devices/system/node/node0/cpulist: "0-3,8,10-11".
// Empty text is an empty list. At most 65536 cpus.
absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view text);

// `cpus` must be sorted and unique.
std::string FormatCpuList(const std::vector<int>& cpus);

}  // namespace dtrain
