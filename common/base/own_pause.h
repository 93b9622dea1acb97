// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "common/base/clock.h"

namespace dtrain {

// For how long this process did not run (stopped, starved, its machine frozen) before it looks at
// the time again: so late it was called after `due`, which it had asked for. `before`: its last
// look. What is no more than `tolerance` is a busy machine's. Whoever judges the silence of another
// does not count such time: it could not have heard anything.
inline Duration OwnPause(TimePoint before, TimePoint due, TimePoint now, Duration tolerance) {
  const TimePoint begin = std::max(before, due);
  return now > begin && now - begin > tolerance ? now - begin : Duration::zero();
}

}  // namespace dtrain
