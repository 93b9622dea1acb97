// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "agent/spawn/job_words.h"
#include "agent/spawn/processes.h"
#include "agent/spawn/spawner.h"
#include "agent/spawn/spawner_wire.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"

namespace dtrain::spawn {

// What RemoteSpawner knows of one job, from its order until dtrain-spawner says that nothing of it
// is left; its RemoteProcesses may be gone long before.
struct RemoteJob {
  enum class Stage {
    kWaiting,  // for the spawner to be there
    kAsked,    // to start it
    kRuns,     // or what is left of it
    kGone,
  };
  explicit RemoteJob(loop::Loop& loop)
      : limit(loop), patience(loop), after_end(loop), killed_later(loop) {}

  Stage stage = Stage::kWaiting;
  Order order;
  JobKey key;
  std::string link, cgroup;
  pid_t pid = 0;            // of the shepherd; 0: not known
  uint64_t start_time = 0;  // with the pid
  os::UniqueFd pidfd;       // empty: not known, or it has ended
  std::unique_ptr<loop::FdWatch> exit_watch;
  os::UniqueFd socket;
  std::unique_ptr<JobWords> words;
  bool asked_again = false;             // the first answer was lost with its connection
  std::optional<TimePoint> busy_since;  // the spawner had no room for it
  bool held = true;                     // by its RemoteProcesses
  bool kill = false;                    // asked for; said again to the next spawner

  std::optional<absl::Status> started;  // until WhenStarted asks
  Processes::OnStarted on_started;
  bool shepherd_ended = false;
  std::string how_ended;
  Processes::OnEnded on_shepherd_ended;
  loop::Task on_gone;

  // For the spawner to come back, or to have room; for nobody to take over what it lists; then for
  // the shepherd to end by itself.
  loop::Timer limit, patience;
  loop::Timer after_end, killed_later;
  std::shared_ptr<const bool> presence;
};

}  // namespace dtrain::spawn
