// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "agent/session/life.h"
#include "common/base/clock.h"

namespace dtrain::session {

// What goes between a session and its launcher: when that is lost, after the lease or, of a
// detached job, as long as that may be without one; and that it hears from us five times a lease.
// Of a launcher on this machine the stream counts, not the silence: it is stopped or starved. Pure.
class LauncherLease {
 public:
  explicit LauncherLease(Life& life)
      : life_(life), last_heard_(life.now()), last_beat_(life.now()) {}

  // Some word or frame of it.
  void OnHeard() { last_heard_ = life_.now(); }
  // Its stream has ended; it may come back.
  void OnAway();
  void OnResumed();
  void OnTakenOver();
  // Whether the session only reserves its share for a later attempt.
  void OnSpare(bool is_spare) { spare_ = is_spare; }
  // Nothing was heard of it for too long, and workers are ended; it may still come, or another.
  void Expire();
  // For good: nothing it says counts any more.
  void GiveUp() { given_up_ = true; }
  // For how long we did not run, which is nobody's silence.
  void Credit(Duration pause) { last_heard_ += pause; }

  // On channel 0. Any event tells the launcher that we live.
  void Tell(v1::SessionEvent event);
  void Warn(std::string message);
  void Fail(v1::NodeFailure::Kind kind, int exit_code, std::string message);
  void OnStopAsked(const StopAsked& stop);
  // The workers here are ending or gone. Those on other nodes may not be, or an attempt may follow.
  void OnStopAskedLate(const StopAsked& stop);
  void Beat();

  bool away() const { return away_; }
  bool given_up() const { return given_up_; }
  // Of a connected launcher, before it is given up; zero: its silence does not count.
  Duration most_silence() const;

  // Deadlines; kNever: none.
  TimePoint HelloDue() const;
  TimePoint JoinEnd() const;  // before the start: what it has reserved others may want
  TimePoint End() const;      // of its workers
  TimePoint KeptEnd() const;  // of what it is to learn of their end: of a detached job a day later
  TimePoint BeatAt() const;
  Duration beat_period() const;

 private:
  bool counts_silence() const { return life_.self().resumable || !life_.hello().same_machine(); }

  Life& life_;
  TimePoint last_heard_;
  TimePoint last_beat_;
  bool away_ = false;
  TimePoint away_since_;
  bool given_up_ = false;
  bool expired_ = false;
  bool spare_ = false;
  TimePoint leave_by_ = kNever;  // set when the job is stopped
};

}  // namespace dtrain::session
