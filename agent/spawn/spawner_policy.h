// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace dtrain::spawn {

// Whether this node's dtrain-spawner runs jobs of root's, by its configuration. False where that
// cannot be read or is wrong.
bool AllowsRoot(const std::string& config = "/etc/dtrain/spawner.conf");

}  // namespace dtrain::spawn
