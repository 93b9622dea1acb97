// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>

#include "agent/session/gpu_release.h"
#include "agent/session/launcher_lease.h"
#include "agent/session/life.h"
#include "common/base/clock.h"

namespace dtrain::session {

// After the last worker's end: until the job's GPUs are free too, or ten seconds have passed; two
// once a KILL was asked for. A driver may free the memory of a process that was killed a little
// after its end. Pure.
class ReleasePhase {
 public:
  ReleasePhase(Life& life, LauncherLease& lease) : life_(life), lease_(lease) {}

  // Of a job that was adopted; `over`: so its shepherd said, which nobody hears again.
  void Adopt(const v1::KeepRunning& kept, const Reported& reported, bool over);
  // Before the end: which GPUs are the job's, how they were, and its processes.
  void OnGpusBefore(const GpusSeen& seen) { gpus_.Before(seen.gpus); }
  void Given(std::set<std::string> uuids) { gpus_.Given(std::move(uuids)); }
  void OnReported(const Reported& reported);

  // No worker is left. Also without a launcher: a resident agent has others who want these GPUs.
  void Begin();
  void OnGpusSeen(const GpusSeen& seen);
  void Hurry();
  // The launcher does not wait: they are as we saw them last.
  void OnGoodbye();

  TimePoint LookAt() const { return look_at_; }
  void Look();
  TimePoint GiveUpAt() const { return give_up_at_; }
  void GiveUp();

 private:
  void ReportHeld();
  void End();

  Life& life_;
  LauncherLease& lease_;
  GpuRelease gpus_;
  bool hurried_ = false;
  bool looking_ = false;  // a look is under way
  TimePoint look_at_ = kNever;
  TimePoint give_up_at_ = kNever;
};

}  // namespace dtrain::session
