// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "agent/session/life.h"
#include "agent/session/session_events.h"
#include "common/base/clock.h"

namespace dtrain::session {

struct SessionPhases;

// One launcher's hold on this node, from its Hello to the last worker's end. Pure. It only
// dispatches: session_core.cc has the tables; begin with Life for the classes behind them.
//
// Its one promise: workers live no longer than their launcher is heard from. The stream's end, or
// lease_ms of silence, stops them within the grace, and so does the shepherd's death; a shepherd
// that does not, or that says nothing to what it is asked, is killed. Time in which this
// process does not run is no silence, nor is a launcher on this machine silent whose stream stands:
// it is stopped or starved. The launcher hears of the last worker's end from the shepherd, and
// then, with Released, that its GPUs are free too, or have not become it in ten seconds.
class SessionCore {
 public:
  using State = SessionState;

  SessionCore(Identity self, TimePoint now);
  // Of a job that an agent before us has started; its launcher is yet to come back. Tick it: what
  // its agent waited for is looked at again.
  SessionCore(Identity self, TimePoint now, const v1::Account& account, const Reported& reported);
  ~SessionCore();
  SessionCore(SessionCore&&) noexcept;
  SessionCore& operator=(SessionCore&&) noexcept;

  std::vector<Action> OnEvent(TimePoint now, const Event& event);
  TimePoint NextDeadline() const;
  State state() const;
  const v1::Hello& hello() const;  // valid after kNew
  // The launcher whose session this is comes back, or one that takes its place, and there is one to
  // come back to.
  bool CanResume(const v1::Hello& hello) const;
  // Of one that can resume: it is another than the session's, and takes the job over.
  bool Outranks(const v1::Hello& hello) const;
  // Whether what the launcher says to the shepherd is passed on.
  bool passes() const;
  // Of a connected launcher, before it is given up; zero: its silence does not count.
  Duration most_silence() const;
  // The launcher is not connected and may come back.
  bool away() const;
  // This agent's sessions end with their streams, but this one's shepherd waits for another agent,
  // for which its launcher is leaving it.
  bool MayBeLeft() const;
  // Of the workers, as far as we wait for it: none before there are any.
  Duration grace() const;

 private:
  std::unique_ptr<SessionPhases> phases_;
};

}  // namespace dtrain::session
