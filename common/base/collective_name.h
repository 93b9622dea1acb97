// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iterator>

namespace dtrain {

// "allreduce", ... of a TimelineKind.
inline const char* CollectiveName(uint32_t kind) {
  constexpr const char* kNames[] = {"barrier",        "allreduce",  "broadcast", "allgather",
                                    "reduce-scatter", "all-to-all", "reduce"};
  return kind < std::size(kNames) ? kNames[kind] : "collective";
}

}  // namespace dtrain
