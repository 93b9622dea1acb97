// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/loop/loop.h"
#include "common/os/cgroup.h"
#include "common/os/process_tree.h"

namespace dtrain::shepherd {

// Ends every process of the job on this node, whatever it did to get away: the cgroup's members
// where there is one, and all descendants, which the shepherd inherits as their subreaper.
// Loop thread.
class Sweeper {
 public:
  explicit Sweeper(loop::Loop& loop) : timer_(loop) {}
  void set_cgroup(os::Cgroup cgroup) { cgroup_ = std::move(cgroup); }

  // Not these, children of ours that end by themselves.
  void Spare(std::vector<pid_t> pids) { spared_ = std::move(pids); }
  // One round of SIGKILL.
  void KillAll();
  // The same for those in other PID namespaces than ours, and no more: in containers.
  void KillElsewhere();
  // The living processes of the job, but for those that are spared.
  std::vector<os::ProcessInfo> Left() const;
  bool NothingLeft() const;
  // Rounds until nothing is left, then `done`; at once when nothing is.
  void Sweep(loop::Task done);
  // A child was reaped: looks again.
  void OnReaped();
  // Stops trying, says who is left: "pid 17 (state D, in nfs_wait)".
  std::string GiveUp();
  // Leaves no directory behind. After the end of all processes.
  void RemoveCgroup();

 private:
  bool AllGone() const;
  void Check();
  std::vector<os::ProcessInfo> Doomed() const;
  std::optional<os::Cgroup> cgroup_;
  std::vector<pid_t> spared_;
  loop::Timer timer_;
  Duration pause_{};
  loop::Task done_;
};

}  // namespace dtrain::shepherd
