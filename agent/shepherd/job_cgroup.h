// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/shepherd/launcher_line.h"
#include "agent/shepherd/sweeper.h"
#include "common/os/cgroup.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// The cgroup of a job's workers, if one can be had; the sweeper ends what is in it and removes it.
// Without one the launcher is warned, unless the job requires it. Loop thread.
class JobCgroup {
 public:
  // `is_prepared`: dtrain-spawner has made the one in which ours is made. `part` must stay, and may
  // come later.
  JobCgroup(const v1::JobPart& part, bool is_prepared, Sweeper& sweeper, LauncherLine& launcher);

  // Why the job cannot start: it requires one.
  std::optional<v1::NodeFailure> Make();
  // It could be made, but cannot be used.
  void Lose(const absl::Status& why);
  bool has() const { return cgroup_.has_value(); }
  // For SpawnSpec; -1: none.
  int fd() const { return directory_.get(); }

  // Marks `exit`, of a SIGKILL that was not ours, if the kernel has killed for memory: it counts
  // its kills, each of which explains one.
  void ExplainKill(v1::WorkerExit& exit);

 private:
  absl::StatusOr<os::Cgroup> Create() const;
  absl::Status Open();

  const v1::JobPart& part_;
  const bool is_prepared_;
  Sweeper& sweeper_;
  LauncherLine& launcher_;
  std::optional<os::Cgroup> cgroup_;
  os::UniqueFd directory_;
  std::optional<os::OomKillCounter> oom_kills_;  // from Make on
  uint64_t oom_kills_told_ = 0;
};

}  // namespace dtrain::shepherd
