// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/session/launcher_lease.h"
#include "agent/session/life.h"
#include "agent/session/release_phase.h"
#include "agent/session/shepherd_watch.h"
#include "common/base/clock.h"

namespace dtrain::session {

// Whether it is what a launcher of ours says.
bool IsSound(const v1::Hello& hello);

// The Hello of the launcher, and of another that takes its place; until the job begins here, what
// it asks of the node. Pure.
class JoinPhase {
 public:
  JoinPhase(Life& life, LauncherLease& lease, ShepherdWatch& shepherd, ReleasePhase& release)
      : life_(life), lease_(lease), shepherd_(shepherd), release_(release) {}

  void OnHello(const Request& request);
  void OnNoHello();
  void OnTakenOver(const TakenOver& taken);
  void OnProbe(const Request& request);
  void OnHoldPorts(const Request& request);
  void OnReserve(const Request& request);
  void OnLookAgain();
  // The first that is kept begins the job.
  void OnJobFrame(const JobFrame& frame);
  // When the next look that was asked for is due; kNever: none was.
  TimePoint LookAt() const { return wants_look_ ? look_due_ : kNever; }
  void Look();

 private:
  Life& life_;
  LauncherLease& lease_;
  ShepherdWatch& shepherd_;
  ReleasePhase& release_;
  TimePoint ports_due_{};    // this launcher does not ask for ports before
  TimePoint probe_due_{};    // all that were asked for, with a pause after each
  TimePoint reserve_due_{};  // all that it has reserved with a pause after each
  TimePoint look_due_{};     // a look is not answered before
  bool wants_look_ = false;
};

}  // namespace dtrain::session
