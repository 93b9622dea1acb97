// SPDX-License-Identifier: Apache-2.0
#include "agent/session/announcements.h"

#include <cstddef>
#include <utility>

#include "absl/time/clock.h"

namespace dtrain::session {
namespace {

// A handful.
constexpr size_t kMostKept = 64;

bool CountsForAll(const v1::SessionEvent& event) {
  return event.has_finished() || event.has_released() || event.has_failure();
}

}  // namespace

void Announcements::Say(v1::SessionEvent event) {
  // The launcher compares our clocks by it.
  if (event.has_heartbeat()) {
    event.mutable_heartbeat()->set_unix_nanos(absl::GetCurrentTimeNanos());
  }
  if (CountsForAll(event) && kept_.size() < kMostKept) kept_.push_back(event);
  if (!waiting_ || event.has_heartbeat()) return launcher_.Send(event);
  // One that its predecessor was to get is not for it.
  if (!event.has_welcome()) waiting_->push_back(std::move(event));
}

void Announcements::SaySample(const v1::GpuStates& states) {
  if (!waiting_) launcher_.SendSample(states);
}

uint64_t Announcements::AwaitWelcome(std::optional<v1::SessionEvent> first) {
  waiting_.emplace();
  if (first) waiting_->push_back(*std::move(first));
  waiting_->insert(waiting_->end(), kept_.begin(), kept_.end());
  return ++number_;
}

void Announcements::Welcome(uint64_t number, const v1::SessionEvent& welcome) {
  if (number != number_) return;
  launcher_.Send(welcome);
  const auto waiting = std::exchange(waiting_, std::nullopt);
  for (const v1::SessionEvent& event : *waiting) launcher_.Send(event);
}

}  // namespace dtrain::session
