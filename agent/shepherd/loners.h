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
#include "common/os/process_facts.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// Which ranks of a node write the same file although none has talked to another. Pure.
class LonerWatch {
 public:
  // A rank has joined the others or has a network socket: nothing found so far counts.
  void OnTalk();
  // A process of the rank has it open. `mounts` names the process's mount namespace: in a container
  // the same path is another file. False: such files are meant to be shared.
  bool OnFile(uint32_t rank, const std::string& mounts, const os::FileBeingWritten& file);

  bool anybody_talks() const { return anybody_talks_; }
  bool has_found() const { return shared_.has_value(); }
  // For the user, once all have succeeded; "": nothing is wrong.
  std::string Tell() const;

 private:
  // The first file that two ranks have written; `first` is the lower rank.
  struct Shared {
    std::string path;
    uint32_t first = 0, second = 0;
  };
  bool anybody_talks_ = false;
  std::map<std::string, uint32_t> writers_;  // by mount namespace and path
  std::optional<Shared> shared_;
};

// Finds ranks of this node that are a program without a process group: `-np 2` starts two that know
// nothing of each other. Looks at the processes by /proc, now and then and when something changes
// in a folder to which they write, and takes a hundredth of a core for that at most. Loop thread.
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
  void Plan(Duration pause);
  // Whether any rank talks, and which processes there are now. False: nothing is left to be seen.
  bool Look();
  void Await();
  bool HasAnyJoined() const;
  void LookAtProcesses(uint32_t rank, pid_t worker);
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
  LonerWatch watch_;
  Duration pause_{};
  Duration time_left_{};  // for looks at files
  TimePoint looked_at_{};
  std::map<uint32_t, std::vector<pid_t>> processes_;  // by rank, as of the last Look
  std::set<std::string> folders_;
  os::UniqueFd changes_;  // inotify
  std::optional<loop::FdWatch> on_change_;
};

}  // namespace dtrain::shepherd
