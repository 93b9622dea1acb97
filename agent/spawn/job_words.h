// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "agent/spawn/word_limits.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"

namespace dtrain::spawn {

// Copies a job's stderr into our log, behind its name and within WordLimits. Reads on where these
// are reached, a little at a time. Loop thread.
class JobWords {
 public:
  // `pipe`: the end to read, non-blocking. `author`: "job J of alice".
  JobWords(loop::Loop& loop, os::UniqueFd pipe, std::string author);
  // Copies what is there first.
  ~JobWords();
  JobWords(const JobWords&) = delete;
  JobWords& operator=(const JobWords&) = delete;

 private:
  void Await();
  void Read();
  bool ReadOnce();  // false: nothing is there now, or ever again
  void Log(const std::vector<std::string>& lines) const;

  loop::Loop& loop_;
  const os::UniqueFd pipe_;
  const std::string author_;
  WordLimits limits_;
  loop::FdWatch watch_;
  loop::Timer pause_;
  bool ended_ = false;
};

}  // namespace dtrain::spawn
