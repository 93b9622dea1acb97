// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/shepherd/launcher_line.h"
#include "agent/shepherd/save_watch.h"
#include "agent/shepherd/sweeper.h"
#include "agent/shepherd/workers.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"

namespace dtrain::shepherd {

// The processes that workers have started, at the end of a job: helpers, which a SIGTERM to their
// rank spares, and which may end by themselves after it. Loop thread.
class Offspring {
 public:
  // All must stay.
  Offspring(loop::Loop& loop, Workers& workers, Sweeper& sweeper, LauncherLine& launcher)
      : loop_(loop), workers_(workers), sweeper_(sweeper), launcher_(launcher), timer_(loop) {}

  // SIGTERM to those processes of each worker that can act on it (who_acts.h). In containers to all
  // of the worker's group: the runtime's client passes it on.
  void Terminate(bool in_containers);
  // All workers have ended. Calls `none` once no process is left, also from inside this; tells the
  // launcher after a moment for what it waits until `limit`.
  void AwaitEnd(TimePoint limit, loop::Task none);
  // A child was reaped: looks again, if it was the last one.
  void OnReaped();
  // SIGTERM to those that are left and have not got one.
  void TerminateRest();
  // Nothing is awaited any more.
  void Stop();

  // Tells, after a moment and then now and again, which workers have not ended since Terminate, and
  // who writes what. They are killed at `kill_at`, or while they write at `limit`.
  void TellWaiting(const std::vector<SaveWatch::Save>& saves, TimePoint kill_at, TimePoint limit,
                   bool cancelled);
  // Before they are killed: which workers have not ended, how long they had, and what they write.
  // `flag` gives more time.
  void TellKilledWorkers(absl::string_view flag);
  // Likewise, which processes the workers have left running, and what those write.
  void TellKilledRest(absl::string_view flag);

 private:
  using Name = std::pair<pid_t, uint64_t>;  // of a process, for good
  void Look();

  loop::Loop& loop_;
  Workers& workers_;
  Sweeper& sweeper_;
  LauncherLine& launcher_;
  loop::Timer timer_;
  loop::Task none_;
  Duration pause_{};
  TimePoint begun_{}, limit_{}, terminated_{};
  bool told_ = false;
  TimePoint tell_waiting_at_ = kNever;
  std::set<Name> has_term_;
};

}  // namespace dtrain::shepherd
