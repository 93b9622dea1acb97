// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

#include "common/os/unique_fd.h"
#include "launcher/detached/job_folder.h"

namespace dtrain::detached {

// What the launchers of a job say from now on, and who supervises them: the file launcher.log. What
// they say of the job's end comes after its summary. Calls may block.
class LauncherLog {
 public:
  explicit LauncherLog(const JobFolder& job);
  // All that has come since, in whole lines; with `rest` also one without an end.
  std::string Next(bool rest = false);

 private:
  os::UniqueFd fd_;
  off_t offset_ = 0;
  std::string line_;  // without an end yet
};

}  // namespace dtrain::detached
