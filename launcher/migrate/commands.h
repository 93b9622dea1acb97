// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace dtrain::migrate {

// `dtrain migrate`, both ends of it: its exit code.
int RunCommand(const std::vector<std::string>& args);

}  // namespace dtrain::migrate
