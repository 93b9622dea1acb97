// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "agent/session/launcher_lease.h"
#include "agent/session/life.h"
#include "agent/session/release_phase.h"
#include "agent/session/shepherd_watch.h"
#include "common/base/clock.h"

namespace dtrain::session {

// How a session comes to its end, from whatever side: the launcher goes, the workers end, the
// shepherd dies or hangs. Workers outlive none of them. Pure.
class EndPhase {
 public:
  EndPhase(Life& life, LauncherLease& lease, ShepherdWatch& shepherd, ReleasePhase& release)
      : life_(life), lease_(lease), shepherd_(shepherd), release_(release) {}

  // The launcher's stream ended, and it may come back; before the start, too: that may be what was
  // lost.
  void OnAway();
  // It is gone for good, or says that it is: with workers, they are ended first (Orphan); what is
  // being done without it goes on (Abandon); only a resident agent waits for GPUs that others want
  // (Leave).
  void OnGone();
  void Orphan();
  // Nothing was heard of it for as long as it may be silent. Of a detached job another may come,
  // and is to learn how it ended.
  void OnUnheard();
  void Abandon() { lease_.GiveUp(); }
  void Leave();
  void OnGoodbye() { life_.Finish(absl::OkStatus()); }
  void OnBroke(const LauncherBroke& broke) { life_.Finish(broke.why); }

  // While workers run: somebody wants their end.
  void OnEndJob(const Request& request);
  void OnStopAsked(const StopAsked& stop);

  // The launcher is about to hand the job to its successor, which connects through another agent.
  void OnKeepJob();
  void OnReady(const ReadyToBeLeft& ready);
  // Whether the job may be handed over now. False once anyone has asked for its end.
  bool MayBeLeft() const {
    return life_.was_just_kept() && !lease_.given_up() && !shepherd_.ends_workers();
  }

  void OnJobEnded(const JobEnded& ended);
  void OnJobEndedAgain(const JobEnded& ended) { finished_ = ended.finished; }
  void OnOrphansEnded() { release_.Begin(); }
  void OnShepherdGone(const ShepherdGone& gone) { Reap(gone.why); }
  void OnShepherdGoneLate();
  void OnLeftoversGone();

  // The time for the shepherd to confirm that it ends its workers is over: kills it if it has not.
  void OnAnswerDue();
  TimePoint OrphanEnd() const { return orphan_until_; }
  void OnOrphanEnd();
  // The agent's own kills take some seconds; a container runtime's commands may hang, one by one.
  TimePoint ReapEnd() const { return reap_until_; }
  void OnReapEnd();

 private:
  void Reap(std::string why);
  void TellFinished();

  Life& life_;
  LauncherLease& lease_;
  ShepherdWatch& shepherd_;
  ReleasePhase& release_;
  TimePoint orphan_until_ = kNever;
  TimePoint reap_until_ = kNever;
  v1::Finished finished_;  // the shepherd's, which may die before the launcher has it
  bool shepherd_gone_ = false;
  std::string shepherd_end_;  // how
};

}  // namespace dtrain::session
