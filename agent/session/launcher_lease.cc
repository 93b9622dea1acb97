// SPDX-License-Identifier: Apache-2.0
#include "agent/session/launcher_lease.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/exit_code.h"

namespace dtrain::session {
namespace {

// Our launchers say Hello as soon as they are connected.
constexpr Duration kHelloTimeout = std::chrono::seconds(30);
// One may be late, and one lost behind it, before the other side gives up.
constexpr int kBeatsPerLease = 5;
constexpr Duration kKeptFor = std::chrono::hours(24);
// A session without workers waits no longer than this for a launcher that is away, whatever the
// lease.
constexpr Duration kJoiningAway = std::chrono::minutes(1);
constexpr Duration kSpareAway = std::chrono::minutes(10);
// A launcher whose job has not begun has this long to say goodbye after the job was stopped.
constexpr Duration kStopAnswer = std::chrono::seconds(5);

}  // namespace

void LauncherLease::OnAway() {
  away_ = true;
  away_since_ = life_.now();
}

// The channels know what must be sent again.
void LauncherLease::OnResumed() {
  away_ = false;
  expired_ = false;
  life_.Do(OpenChannels{});
}

void LauncherLease::OnTakenOver() {
  away_ = false;
  expired_ = false;
  life_.Do(OpenChannels{/*anew=*/true});
}

void LauncherLease::Expire() {
  expired_ = true;
  Fail(v1::NodeFailure::KIND_UNSPECIFIED, kExitNodeLost,
       absl::StrCat("no launcher of this job was heard for ",
                    absl::FormatDuration(absl::FromChrono(most_silence())),
                    ", so its workers were ended"));
}

void LauncherLease::Tell(v1::SessionEvent event) {
  if (!away_) last_beat_ = life_.now();
  life_.Do(SendEvent{std::move(event)});
}

void LauncherLease::Warn(std::string message) {
  v1::SessionEvent up;
  up.mutable_warning()->set_message(std::move(message));
  Tell(std::move(up));
}

void LauncherLease::Fail(v1::NodeFailure::Kind kind, int exit_code, std::string message) {
  v1::SessionEvent up;
  v1::NodeFailure& failure = *up.mutable_failure();
  failure.set_kind(kind);
  failure.set_exit_code(exit_code);
  failure.set_message(std::move(message));
  Tell(std::move(up));
}

// The launcher, to which a node's failure is the end of its job, stops the other nodes.
void LauncherLease::OnStopAsked(const StopAsked& stop) {
  if (stop.leaves) {
    Fail(v1::NodeFailure::KIND_LEAVES, kExitNodeLost, stop.message);
  } else {
    Fail(v1::NodeFailure::KIND_UNSPECIFIED, kExitTerminated, stop.message);
  }
  leave_by_ = std::min(leave_by_, life_.now() + kStopAnswer);
}

// One that is away may come back when the job has long been over, and succeeded.
void LauncherLease::OnStopAskedLate(const StopAsked& stop) {
  if (!away_ && !given_up_) OnStopAsked(stop);
}

void LauncherLease::Beat() {
  last_beat_ = life_.now();
  if (away_) return;
  v1::SessionEvent up;
  up.mutable_heartbeat();
  life_.Do(SendEvent{std::move(up)});
}

Duration LauncherLease::most_silence() const {
  return counts_silence() ? life_.patience() + life_.self().launcher_wait : Duration::zero();
}

TimePoint LauncherLease::HelloDue() const { return last_heard_ + kHelloTimeout; }

TimePoint LauncherLease::JoinEnd() const {
  if (!counts_silence()) return leave_by_;
  const TimePoint end = std::min(leave_by_, last_heard_ + life_.lease());
  return away_ ? std::min(end, away_since_ + (spare_ ? kSpareAway : kJoiningAway)) : end;
}

// One that stands still keeps its stream. When that ends it has as long again to come back, as far
// as it would have been waited for.
TimePoint LauncherLease::End() const {
  if (given_up_ || expired_ || !counts_silence()) return kNever;
  const TimePoint end = last_heard_ + life_.patience();
  const TimePoint last = end + life_.self().launcher_wait;
  return away_ ? std::max(end, std::min(away_since_ + life_.patience(), last)) : last;
}

TimePoint LauncherLease::KeptEnd() const {
  if (given_up_ || !life_.is_detached()) return End();
  return last_heard_ + most_silence() + kKeptFor;
}

TimePoint LauncherLease::BeatAt() const { return given_up_ ? kNever : last_beat_ + beat_period(); }

Duration LauncherLease::beat_period() const { return life_.lease() / kBeatsPerLease; }

}  // namespace dtrain::session
