// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "agent/shepherd/job_cgroup.h"
#include "agent/shepherd/launcher_line.h"
#include "agent/shepherd/preflight.h"
#include "agent/shepherd/state_folder.h"
#include "agent/shepherd/worker.h"
#include "agent/shepherd/worker_containers.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// The workers of a job on this node. What they take from their stdin, and that their output cannot
// be kept, they tell the launcher. Loop thread.
class Workers {
 public:
  using OnGrown = absl::AnyInvocable<void(uint32_t rank, v1::StreamKind kind)>;
  // What all of them have around them. Borrowed.
  struct Surroundings {
    const std::vector<std::string>& agent_env;
    JobCgroup& cgroup;
    const std::string scratch;  // empty: none
    const StateFolder* state;   // null: none
    const std::string code;     // the staged tree; empty: none
    uint16_t pmix;              // the port; 0: none
    const WorkerContainers* containers;
  };

  // `on_grown`: there is more of a worker's output.
  Workers(loop::Loop& loop, LauncherLine& launcher, OnGrown on_grown);
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Until one cannot be started, and why; those before it run.
  std::optional<v1::NodeFailure> Start(const v1::JobPart& part, const Surroundings& around);
  TimePoint started_at() const { return started_at_; }
  const std::vector<std::unique_ptr<Worker>>& all() const { return workers_; }
  // Null: there is none.
  Worker* Find(uint32_t rank) const;
  Worker* FindRunning(pid_t pid) const;
  v1::Started Started() const;

  void Signal(int signal);
  // To the processes of each worker that have a handler: its helpers and shells would die of it. If
  // none has one, to all of its process group.
  void PassOn(int signal);
  void TakeStdin(const v1::StdinData& data);

 private:
  void OnStuck(uint32_t rank, const absl::Status& why);
  std::string CachesFor(const v1::JobPart& part, const std::vector<std::string>& agent_env);

  loop::Loop& loop_;
  LauncherLine& launcher_;
  const WorkerLimits limits_;
  WorkerHooks hooks_;
  TimePoint started_at_{};
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace dtrain::shepherd
