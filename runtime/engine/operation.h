// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "runtime/base/collective.h"
#include "runtime/engine/group.h"
#include "runtime/engine/matching.h"

namespace dtrain::runtime {

// One collective of the program on its way.
struct Operation {
  Group* group = nullptr;
  Collective what;
  std::string name;  // of the program's own, or empty
  Pending pending;   // of an asynchronous one: by what the other ranks' are found
  std::chrono::steady_clock::time_point added{};
  uint64_t number = 0;  // among those of its group; given by the executor
};

}  // namespace dtrain::runtime
