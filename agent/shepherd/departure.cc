// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/departure.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/own_pause.h"
#include "common/log/log.h"

namespace dtrain::shepherd {
namespace {

// An agent that takes nothing more has been given up by its launcher.
constexpr Duration kSaidLimit = std::chrono::seconds(30);
// The part of a silence that may pass before we are called, on a busy machine.
constexpr int kTolerancePart = 20;

}  // namespace

void Departure::Hurry() {
  hurried_ = true;
  if (leaving_) line_.WaitAtMost(going_down_);
}

void Departure::OnSilent(Duration silence) {
  silence_ = silence;
  waits_from_ = loop_.Now();
  WatchSilence();
}

void Departure::Leave() {
  leaving_ = true;
  waits_from_ = loop_.Now();
  WatchSilence();
  // Given up while there still is an agent, why must reach it.
  if (line_.lost()) return LeaveOnceSaid();
  if (line_.kept() != nullptr) {
    if (hurried_) line_.WaitAtMost(going_down_);
    return;
  }
  // It waits for as long as there is an agent to read it.
  logs_.WhenAllDelivered([this] { LeaveOnceSaid(); });
}

void Departure::LeaveOnceSaid() {
  line_.WhenSaid([this] { loop_.Stop(); });
  said_limit_.After(kSaidLimit, [this] { loop_.Stop(); });
}

TimePoint Departure::LastSign() const {
  if (!line_.has_agent()) return loop_.Now();
  return std::max({waits_from_, line_.last_heard(), logs_.last_taken()});
}

void Departure::WatchSilence() {
  if (!leaving_ || silence_ == Duration::zero()) return;
  const TimePoint due = LastSign() + silence_;
  silence_limit_.At(due, [this, due] {
    const TimePoint now = loop_.Now();
    // We did not run: what was said meanwhile is still to be read.
    const Duration tolerance = silence_ / kTolerancePart;
    if (OwnPause(due, due, now, tolerance) > Duration::zero()) {
      waits_from_ = now - silence_ + tolerance;
    }
    if (now < LastSign() + silence_) return WatchSilence();
    log::Warn(absl::StrCat("neither the launcher nor the agent was heard for ",
                           std::chrono::duration_cast<std::chrono::milliseconds>(silence_).count(),
                           " ms; output that they have not read is lost"));
    loop_.Stop();
  });
}

}  // namespace dtrain::shepherd
