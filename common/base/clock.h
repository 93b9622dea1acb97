// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace dtrain {

// Monotonic time. Cores take it as an argument and never read it; only common/loop does.
using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

inline constexpr TimePoint kNever = TimePoint::max();

}  // namespace dtrain
