// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace dtrain::agent {

// Tells in the log, once, what the agent before this one has died of, when it crashed; and has a
// crash of this one recorded, as `last_crash` in the state directory. On the loop's thread.
void WatchForCrashes(const std::string& state_directory);

}  // namespace dtrain::agent
