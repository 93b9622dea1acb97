// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "agent/shepherd/launcher_line.h"
#include "agent/shepherd/shepherd_core.h"
#include "agent/shepherd/sweeper.h"
#include "agent/shepherd/worker.h"
#include "agent/shepherd/worker_containers.h"
#include "common/loop/loop.h"
#include "common/os/pidfd.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// What containers add to the life of a job whose workers run in them: what is done before the first
// starts and after the last has ended. Without any, all of this is nothing. Loop thread.
class JobContainers {
 public:
  // `node_env`: what the node gave the agent; it must stay.
  JobContainers(loop::Loop& loop, const std::vector<std::string>& node_env,
                const ShepherdCore& core, Sweeper& sweeper, LauncherLine& launcher)
      : loop_(loop), node_env_(node_env), core_(core), sweeper_(sweeper), launcher_(launcher) {}

  // Has the images on the node. `part` must stay. The launcher is told why that cannot be. `done`
  // is never called from inside, and not once the job is stopped.
  using Prepared = absl::AnyInvocable<void(bool ready)>;
  void Prepare(const v1::JobPart& part, Prepared done);
  // Null: no worker runs in one.
  const WorkerContainers* all() const { return all_ ? &*all_ : nullptr; }

  // A child of ours that has ended; false: not one of these.
  bool OnChild(pid_t pid) { return all_ && all_->OnChild(pid); }
  // How the worker ended. Of one in a container the runtime's client was reaped.
  os::ExitStatus EndOf(const Worker& worker, const os::ExitStatus& of_process);

  // One round of SIGKILL for all of the job.
  void KillAll();
  // No client is left. Removes what they may have left.
  void Remove(loop::Task done);

 private:
  void OnPrepared(std::optional<v1::NodeFailure> failure);

  loop::Loop& loop_;
  const std::vector<std::string>& node_env_;
  const ShepherdCore& core_;
  Sweeper& sweeper_;
  LauncherLine& launcher_;
  Prepared prepared_;
  std::optional<WorkerContainers> all_;
};

}  // namespace dtrain::shepherd
