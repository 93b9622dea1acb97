// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/scale_up.h"

#include <algorithm>
#include <chrono>

namespace dtrain::job {
namespace {

// Between looks at a checkpoint that is too old; each is a process on the node.
constexpr Duration kLookAgain = std::chrono::seconds(5);
// For an answer, which a node gives within seconds unless something is wrong there.
constexpr Duration kAnswer = std::chrono::minutes(1);
// A host that can be reached and does not join would cost the job a restart each time. It is waited
// for twice as long after each, so often.
constexpr int kMostDoublings = 6;

}  // namespace

ScaleUp::ScaleUp(Duration after, size_t hosts) : after_(after), hosts_(hosts) {}

void ScaleUp::Begin(const std::vector<uint32_t>& present, const std::vector<bool>& usable,
                    uint32_t most) {
  End();
  if (after_ <= Duration::zero()) return;
  for (const uint32_t host : present) hosts_[host].tries = 0;
  const auto count = static_cast<uint32_t>(std::count(usable.begin(), usable.end(), true));
  const auto has = static_cast<uint32_t>(present.size());
  nodes_ = std::min(most, count);
  if (has >= nodes_) return;
  wanted_ = nodes_ - has;
  for (uint32_t i = 0; i < hosts_.size(); ++i) {
    hosts_[i].absent = usable[i] && std::find(present.begin(), present.end(), i) == present.end();
  }
}

void ScaleUp::End() {
  wanted_ = 0;
  has_checkpoint_ = false;
  look_at_ = TimePoint::min();
  for (Host& host : hosts_) {
    host.absent = false;
    host.since = kNever;
  }
}

void ScaleUp::OnHost(TimePoint now, uint32_t host, bool reachable) {
  if (!hosts_[host].absent) return;
  TimePoint& since = hosts_[host].since;
  if (!reachable) {
    since = kNever;
  } else if (since == kNever) {
    since = now;
  }
}

void ScaleUp::OnCheckpoint(TimePoint now, bool newer) {
  if (wanted_ == 0) return;
  // It would be an old one when hosts that went meanwhile are back.
  has_checkpoint_ = newer && now >= ReadyAt();
  look_at_ = now + kLookAgain;
}

TimePoint ScaleUp::ReadyAt(const Host& host) const {
  if (!host.absent || host.since == kNever) return kNever;
  return host.since + after_ * (int64_t{1} << std::min(host.tries, kMostDoublings));
}

// When the last of as many as are needed has been there for long enough.
TimePoint ScaleUp::ReadyAt() const {
  if (wanted_ == 0) return kNever;
  std::vector<TimePoint> ready;
  for (const Host& host : hosts_) {
    if (const TimePoint at = ReadyAt(host); at != kNever) ready.push_back(at);
  }
  if (ready.size() < wanted_) return kNever;
  std::nth_element(ready.begin(), ready.begin() + (wanted_ - 1), ready.end());
  return ready[wanted_ - 1];
}

TimePoint ScaleUp::NextDeadline() const {
  const TimePoint ready = ReadyAt();
  return has_checkpoint_ ? ready : std::max(ready, look_at_);
}

ScaleUp::Next ScaleUp::Decide(TimePoint now) {
  const TimePoint due = NextDeadline();
  if (due == kNever || now < due) return Next::kNothing;
  back_.clear();
  for (uint32_t i = 0; i < hosts_.size(); ++i) {
    const TimePoint at = ReadyAt(hosts_[i]);
    if (at != kNever && now >= at) back_.push_back(i);
  }
  if (!has_checkpoint_) {
    look_at_ = now + kAnswer;
    return Next::kLookAtCheckpoint;
  }
  for (const uint32_t host : back_) ++hosts_[host].tries;
  End();
  return Next::kRestart;
}

std::vector<uint32_t> ScaleUp::absent() const {
  std::vector<uint32_t> absent;
  for (uint32_t i = 0; i < hosts_.size(); ++i) {
    if (hosts_[i].absent) absent.push_back(i);
  }
  return absent;
}

}  // namespace dtrain::job
