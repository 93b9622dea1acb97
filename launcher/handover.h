// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/file_lock.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/code.h"
#include "launcher/detached/job_folder.h"
#include "launcher/detached/log_store.h"
#include "launcher/detached/supervisor.h"

namespace dtrain {

// A job that is to go on without the terminal it was launched from (`dtrain detach`): it becomes a
// detached one under its own id, and a launcher of its own takes it over from us, as from one that
// was killed. Calls block.
class Handover {
 public:
  struct Job {
    v1::Spec spec;           // with its id
    v1::JournalState state;  // what a launcher would have journalled by now, except `launcher`
    std::vector<detached::LogStore::Piece> output;  // the last of what was shown
    Code* code = nullptr;                           // null: none is staged
    bool may_restart = false;
  };

  // Why this machine would not let its launcher run, or its folder takes nothing. Any thread.
  // Blocks for as long as the folder's disk likes.
  static absl::Status Check();
  // Makes the job's folder and holds its lock. On failure there is no folder.
  static absl::StatusOr<std::unique_ptr<Handover>> Make(Job job);
  // We have let it go; `lost`: what our log files lack. Waits until another launcher has it, and
  // says so or why not on stderr. Returns the exit code.
  int Finish(const v1::OutputLost& lost) &&;

 private:
  Handover(detached::Supervisor supervisor, os::FileLock lock, detached::JobFolder folder)
      : supervisor_(supervisor), lock_(std::move(lock)), folder_(std::move(folder)) {}

  const detached::Supervisor supervisor_;
  std::optional<os::FileLock> lock_;
  const detached::JobFolder folder_;
};

}  // namespace dtrain
