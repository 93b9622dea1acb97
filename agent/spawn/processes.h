// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/os/account.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/state.pb.h"

namespace dtrain::spawn {

// Whose a job is: the user that its workers run as.
struct Owner {
  uid_t uid = 0;
  std::string name;
};

// What runs of one job on this node: its shepherd, the workers, and all that these have started.
// Loop thread.
//
// Destroying this lets go of it. The shepherd's socket has closed by then, at which it ends its
// workers and itself; one that does not, as its user has stopped it, is killed after its patience.
class Processes {
 public:
  using OnStarted = absl::AnyInvocable<void(absl::Status)>;
  using OnEnded = absl::AnyInvocable<void(std::string how)>;

  Processes() = default;
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  virtual ~Processes() = default;

  // Connected to the shepherd, once WhenStarted has told that it runs. Once.
  virtual os::UniqueFd TakeSocket() = 0;
  // Its socket for agents after us listens already, and its workers have a cgroup: it needs neither
  // from us.
  virtual bool is_prepared() const = 0;
  // Tells once whether the shepherd runs: at once as ourselves; for another user, who may hold its
  // start up, later, and for no longer than a few seconds. If it does not run, destroy this.
  virtual void WhenStarted(OnStarted done) = 0;
  // Tells once that the shepherd's process has ended, and how: "killed by signal 9".
  virtual void WhenShepherdEnded(OnEnded done) = 0;
  virtual bool shepherd_ended() const = 0;
  // To look it up in /proc; another process may have it once the shepherd has ended. 0: not known.
  virtual pid_t shepherd_pid() const = 0;
  // Whom it runs as; null: as ourselves, or not known, as an agent before us has started it.
  virtual const os::Account* account() const = 0;
  // The part of the job that it has from now on.
  virtual void SetPart(const std::string& job_id, uint32_t attempt, uint32_t node_rank) = 0;
  // Writes down what Spawner::Adopt needs.
  virtual void Save(v1::JobRecord& record) const = 0;

  // The pids of what lives, the shepherd not counted.
  virtual std::vector<uint32_t> Living() const = 0;
  // SIGKILL to the shepherd and to all in its cgroup.
  virtual void KillShepherd() = 0;
  // SIGKILL to all of Living. What does not end is quarantined.
  virtual void KillLiving() = 0;
  // SIGKILL to those that have the job's variables: also in containers, but not to what runs these.
  virtual void KillMarked() = 0;
  // Kills all of it, again and again, until nothing is left or nothing helps, which is logged.
  // Then calls `done`, never from inside. Nothing else may be asked of this meanwhile.
  virtual void EndAll(loop::Task done) = 0;
  // The pids of what EndAll has killed.
  virtual const std::set<uint32_t>& killed() const = 0;

  // For how long the shepherd may end its workers and itself, once this is destroyed.
  virtual void set_patience(Duration patience) = 0;
  // Held until its process has ended, also when this is destroyed before.
  virtual void set_presence(std::shared_ptr<const bool> presence) = 0;
};

}  // namespace dtrain::spawn
