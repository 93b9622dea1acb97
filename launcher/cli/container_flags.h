// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "launcher/cli/flag_table.h"

namespace dtrain::cli {

// The flags that run workers in containers.
std::vector<Flag> ContainerFlags();

// Whether one of them is given that says how, while none says which image: that is an error on a
// command line.
absl::Status CheckHasImage(const v1::Container& container);

}  // namespace dtrain::cli
