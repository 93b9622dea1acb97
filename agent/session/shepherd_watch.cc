// SPDX-License-Identifier: Apache-2.0
#include "agent/session/shepherd_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace dtrain::session {
namespace {

using std::chrono::milliseconds;

// Beyond the grace: workers may be there that it cannot kill. One that is stopped, or waits for a
// file server that is down, never answers.
constexpr Duration kAnswerLimit = std::chrono::seconds(10);

}  // namespace

void ShepherdWatch::OnJobFrame(const JobFrame& frame) {
  if (frame.asks) asked_at_ = std::min(asked_at_, life_.now());
}

void ShepherdWatch::OnAnswers() {
  answered_ = true;
  asked_at_ = kNever;
}

void ShepherdWatch::Credit(Duration pause) {
  if (answer_by_ != kNever) answer_by_ += pause;
  if (asked_at_ != kNever) asked_at_ += pause;
}

void ShepherdWatch::EndWorkers(uint32_t grace_ms) {
  grace_ms_ = BoundedGrace(grace_ms);
  const TimePoint by = life_.now() + milliseconds(grace_ms_) + kAnswerLimit;
  answer_by_ = answered_ ? by : std::min(answer_by_, by);
  answered_ = false;
  v1::ShepherdRequest request;
  request.mutable_end_job()->set_grace_ms(grace_ms_);
  life_.Do(SendShepherd{std::move(request)});
}

void ShepherdWatch::OnSilent() {
  asked_at_ = kNever;
  EndWorkers(0);
}

TimePoint ShepherdWatch::SilentAt() const {
  return asked_at_ == kNever ? kNever : asked_at_ + life_.lease();
}

void ShepherdWatch::AskAgain() {
  EndWorkers(grace_ms_);
  answer_by_ = life_.now() + kAnswerLimit;
}

}  // namespace dtrain::session
