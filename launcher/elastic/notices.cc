// SPDX-License-Identifier: Apache-2.0
#include "launcher/elastic/notices.h"

#include <algorithm>

namespace dtrain::elastic {
namespace {

// A delivered one takes effect at the program's next commit.
constexpr Duration kFirstPause = std::chrono::seconds(10);
constexpr Duration kLongestPause = std::chrono::seconds(60);
constexpr Duration kPauseAfterFailure = std::chrono::seconds(5);
constexpr uint32_t kFailuresToWarn = 3;

}  // namespace

void Notices::OnRound() {
  due_ = on_its_way_ = numbered_ = false;
  delivered_ = failed_ = 0;
  next_ = TimePoint::min();
}

void Notices::SetDue(bool due) { due_ = due; }

uint32_t Notices::Send() {
  if (!numbered_) ++timestamp_;
  numbered_ = true;
  on_its_way_ = true;
  return timestamp_;
}

bool Notices::OnDone(TimePoint now, uint32_t timestamp, bool delivered) {
  if (!on_its_way_ || timestamp != timestamp_) return false;
  on_its_way_ = false;
  if (!delivered) {
    next_ = now + kPauseAfterFailure;
    if (++failed_ < kFailuresToWarn || warned_) return false;
    warned_ = true;
    return true;
  }
  failed_ = 0;
  Duration pause = kFirstPause;
  for (uint32_t i = 0; i < delivered_ && pause < kLongestPause; ++i) pause *= 2;
  next_ = now + std::min(pause, kLongestPause);
  ++delivered_;
  return false;
}

}  // namespace dtrain::elastic
