// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/shepherd/launcher_line.h"
#include "agent/shepherd/pmi_service.h"
#include "agent/shepherd/shepherd_core.h"
#include "agent/shepherd/workers.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// Finds ranks of this node that write the same file although none of the job's has talked to
// another: a program without a process group, of which -np 2 starts two that know nothing of each
// other. Looks at the processes by /proc, now and then and when something changes in a folder to
// which they write, and takes a hundredth of a core for that at most. Loop thread.
class Loners {
 public:
  // `core`: it looks while workers run.
  Loners(loop::Loop& loop, const ShepherdCore& core, const Workers& workers, const PmiService& pmi,
         LauncherLine& launcher);

  // The workers run.
  void Begin(const v1::JobPart& part, const std::vector<std::string>& agent_env);
  // All have ended. Warns only if they have succeeded: a failure has a report of its own.
  void End(bool all_succeeded);

 private:
  // Of a file: which rank wrote it. The first two of one file are told.
  struct Shared {
    std::string path;
    uint32_t first = 0, second = 0;
  };
  void Plan(Duration pause);
  void Look();
  void Await();
  bool Talks(uint32_t rank);
  void LookAtFiles();
  void WatchFolder(const std::string& folder);
  void Stop();

  loop::Loop& loop_;
  const ShepherdCore& core_;
  const Workers& workers_;
  const PmiService& pmi_;
  LauncherLine& launcher_;
  loop::Timer timer_;
  loop::Timer soon_;
  bool on_ = false;
  Duration pause_{};
  Duration time_left_{};  // for looks at files
  TimePoint looked_at_{};
  std::map<uint32_t, std::vector<pid_t>> processes_;  // by rank, as of the last Look
  std::map<std::string, uint32_t> writers_;           // by path
  std::set<std::string> folders_;
  std::optional<Shared> shared_;
  os::UniqueFd changes_;  // inotify
  std::optional<loop::FdWatch> watch_;
};

}  // namespace dtrain::shepherd
