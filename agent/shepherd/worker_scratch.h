// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "agent/shepherd/launcher_line.h"
#include "common/os/scratch_folder.h"

namespace dtrain::shepherd {

// The folder in which a job's workers may leave why they failed. The job does without if there is
// none: the launcher is warned. Loop thread.
class WorkerScratch {
 public:
  explicit WorkerScratch(LauncherLine& launcher) : launcher_(launcher) {}

  void Make();
  // Empty: there is none.
  std::string path() const { return folder_ ? folder_->path() : ""; }
  // What the rank has left there; empty: nothing.
  std::string ReadErrorFile(uint32_t rank);
  void Remove();

 private:
  LauncherLine& launcher_;
  std::optional<os::ScratchFolder> folder_;
};

}  // namespace dtrain::shepherd
