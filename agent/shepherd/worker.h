// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "agent/shepherd/log_stream.h"
#include "agent/shepherd/page.h"
#include "agent/shepherd/state_folder.h"
#include "agent/shepherd/stdin_feeder.h"
#include "agent/shepherd/worker_containers.h"
#include "agent/shepherd/worker_env.h"
#include "common/loop/loop.h"
#include "common/os/pidfd.h"
#include "common/os/spawn.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// What all workers of a part have in common when they are started. Borrowed.
struct WorkerSetup {
  const v1::JobPart& part;
  const WorkerEnv& env;
  const std::vector<std::string>& spool_directories;
  const std::vector<std::pair<int, rlimit>>& limits;
  int cgroup_fd;                     // of the job, for SpawnSpec; -1: none
  const std::string& mark;           // os::ProcessMark of the shepherd
  const std::string& pid_namespace;  // os::PidNamespace
  const std::string& scratch;        // where it may leave a file; empty: nowhere
  const StateFolder* state;          // null: nothing is kept for the next attempt
  const std::string& code;           // the staged tree; empty: none
  uint16_t pmix;                     // the port of the node's PMIx; 0: none
  const NodeTraits& traits;
  const WorkerContainers* containers;  // null: none runs in one
};

// What a worker's streams tell. Called on the loop.
struct WorkerHooks {
  absl::AnyInvocable<void(uint32_t rank, v1::StreamKind)> log_grown;
  absl::AnyInvocable<void(uint32_t rank, const absl::Status&)> log_stuck;
  absl::AnyInvocable<void(uint32_t rank, const StdinFeeder::Taken& taken)> stdin_taken;
};

// One running worker process with its streams. Loop thread.
class Worker {
 public:
  // On failure `error` says at which step; kNone there means that it was before the spawn.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(loop::Loop& loop, const WorkerSetup& setup,
                                                       const v1::WorkerSpec& spec,
                                                       WorkerHooks& hooks, os::SpawnError* error);

  uint32_t rank() const { return spec_.rank(); }
  const v1::WorkerSpec& spec() const { return spec_; }
  pid_t pid() const { return child_.pid; }
  bool ended() const { return ended_; }
  LogStream& log(v1::StreamKind kind) {
    return kind == v1::STREAM_KIND_STDERR ? *stderr_ : *stdout_;
  }
  // On its stderr: the last lines, for a report.
  std::string LastWords() const;
  StdinFeeder* stdin_feeder() { return stdin_.get(); }
  // The worker's end of the PMI socket pair is in the worker; this is ours.
  os::UniqueFd TakePmiSocket() { return std::move(pmi_); }
  Page& page() { return page_; }
  // The counters at its end have been reported.
  bool progress_told() const { return progress_told_; }
  void set_progress_told() { progress_told_ = true; }

  // To the worker and all of its process group. Nothing when it was reaped: its pid may be
  // another's by then.
  void Signal(int signal);
  // Whether its process runs, by /proc, and now and then those that it has started. Called once a
  // second.
  void LookAtState();
  // What the last look found, in `progress`. False: nothing of note, and nothing to take back.
  bool AddState(v1::RankProgress& progress);
  // Reaps it, if it has ended.
  std::optional<os::ExitStatus> Reap();

 private:
  explicit Worker(v1::WorkerSpec spec) : spec_(std::move(spec)) {}
  char LookBelow() const;
  v1::WorkerSpec spec_;
  os::Child child_;
  bool ended_ = false;
  std::unique_ptr<LogStream> stdout_, stderr_;
  std::unique_ptr<StdinFeeder> stdin_;
  os::UniqueFd pmi_;
  Page page_;
  bool progress_told_ = false;
  char state_ = 0;       // of its process, or one below it; 0: runs, or waits as usual
  char below_ = 0;       // of those below, as last looked at
  int until_below_ = 0;  // looks
  int64_t state_since_unix_nanos_ = 0;
  int looks_ = 0;  // since then, that found the same
  bool state_told_ = false;
};

}  // namespace dtrain::shepherd
