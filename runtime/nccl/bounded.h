// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

namespace dtrain::runtime {

// Runs `body` on a thread of its own that blocks all signals, and returns true when it is done.
// When it takes longer than `limit` it is left behind, and the result is false: `body` must not
// touch anything that goes away. Calls into a driver that hangs cannot be ended, only left.
bool RunBounded(std::function<void()> body, std::chrono::milliseconds limit);

// Runs `body` on a thread of its own, detached, signals blocked; here and now when no thread can
// be had.
void RunDetached(std::function<void()> body);

}  // namespace dtrain::runtime
