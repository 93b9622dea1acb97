// SPDX-License-Identifier: Apache-2.0
#include "common/base/patience.h"

#include <algorithm>

namespace dtrain {
namespace {

constexpr std::chrono::milliseconds kLongestAway = std::chrono::hours(30 * 24);

}  // namespace

std::chrono::milliseconds PatienceOf(const v1::Hello& hello) {
  const std::chrono::milliseconds lease(hello.lease_ms());
  if (hello.generation() == 0) return lease;
  return std::max(lease, std::min(std::chrono::milliseconds(hello.away_ms()), kLongestAway));
}

}  // namespace dtrain
