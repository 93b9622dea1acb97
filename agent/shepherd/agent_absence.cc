// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/agent_absence.h"

#include <algorithm>
#include <utility>

#include "common/base/own_pause.h"

namespace dtrain::shepherd {
namespace {

// How often the time is looked at during a lease, so that a pause of our own is seen as one.
constexpr int kLooksPerLease = 20;

}  // namespace

AgentAbsence::AgentAbsence(loop::Loop& loop, loop::Task on_over)
    : loop_(loop), on_over_(std::move(on_over)), timer_(loop) {}

void AgentAbsence::Begin(Duration lease) {
  lasts_ = true;
  lease_ = lease;
  since_ = loop_.Now();
  timer_.After(Duration::zero(), [this] { Look(); });
}

void AgentAbsence::End() {
  lasts_ = false;
  timer_.Cancel();
}

void AgentAbsence::LimitTo(Duration limit) {
  if (limit_) return;
  limit_ = limit;
  limited_since_ = loop_.Now();
  if (lasts_) timer_.After(Duration::zero(), [this] { Look(); });
}

void AgentAbsence::Look() {
  TimePoint end = since_ + lease_;
  if (limit_) end = std::min(end, std::max(since_, limited_since_) + *limit_);
  const TimePoint begin = loop_.Now();
  if (begin >= end) {
    End();
    return on_over_();
  }
  const TimePoint look = std::min(end, begin + lease_ / kLooksPerLease);
  timer_.At(look, [this, begin, look] {
    since_ += OwnPause(begin, look, loop_.Now(), lease_ / kLooksPerLease);
    Look();
  });
}

}  // namespace dtrain::shepherd
