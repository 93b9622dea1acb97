// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace dtrain::os {

// This process's own, "NAME=value" each, as SpawnSpec takes it.
std::vector<std::string> OwnEnvironment();

}  // namespace dtrain::os
