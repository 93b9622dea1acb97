// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dtrain::agent {

struct Crash {
  std::string text;  // what it died of, and its last request
  int64_t unix_nanos = 0;
};

// Tells in the log, once, what the agent before this one has died of, when it crashed; and has a
// crash of this one recorded, as `last_crash` in the state directory. Returns the last crash there
// was, told before or not. On the loop's thread.
std::optional<Crash> WatchForCrashes(const std::string& state_directory);

}  // namespace dtrain::agent
