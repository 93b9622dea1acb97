// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dtrain {

// Of a node that has no part in the job and is held for the next attempt: Reserve.node_rank.
inline constexpr uint32_t kNoNodeRank = UINT32_MAX;

}  // namespace dtrain
