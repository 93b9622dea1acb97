// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/spawn/processes.h"
#include "common/base/clock.h"
#include "common/os/process_tree.h"

namespace dtrain::spawn {

// Processes of jobs that SIGKILL does not end. While one of them is there the node takes no jobs of
// its user's: what holds it in the kernel would hold the next job's too. That may be the user's own
// doing (a file system of his that does not answer), so others' jobs are taken unless the GPUs'
// driver holds it, or processes of several users are held by something other than FUSE. No report
// of this is trusted: a process counts when we have sent it SIGKILL ourselves and it is there two
// seconds later. One that is quickly followed by another of its kind does not. Loop thread.
class Quarantine {
 public:
  // How many processes of one job are remembered: one that stays is reason enough.
  static constexpr size_t kMostOfJob = 64;

  // Where a process waits in the kernel: os::WaitChannel, except in tests.
  using ChannelOf = std::string (*)(pid_t pid);
  explicit Quarantine(ChannelOf channel = os::WaitChannel) : channel_of_(channel) {}

  // SIGKILL to those that are still the processes they were when listed. Returns how many there
  // were, ended ones not counted.
  size_t Kill(TimePoint now, const std::string& job_id, const Owner& owner,
              const std::vector<os::ProcessInfo>& processes);
  // They have got it now. Of more than kMostOfJob those come first that may hang in the kernel.
  void Killed(TimePoint now, const std::string& job_id, const Owner& owner,
              const std::vector<os::ProcessInfo>& processes);
  // Why the node takes no jobs of this user's, or (nullopt) of somebody's; empty: it does. Any user
  // may ask: so a process is looked at every 250 ms at most, and forgotten once it has ended.
  std::string Why(TimePoint now, std::optional<uid_t> uid);

  // To look for a user's processes takes the loop's time, and more the more he has: when this agent
  // may do so again for any job of his.
  TimePoint LooksFrom(uid_t uid) const;
  // It did so, and pauses for `times` as long.
  void Looked(uid_t uid, TimePoint begin, TimePoint end, int times);

  // By /proc/PID/stack, which only root may read: whether a module of NVIDIA's is in it.
  static bool IsInDriver(absl::string_view stack);
  // By /proc/PID/wchan, which the packages' agent may not read of others' processes: it waits for a
  // program that serves a file system, which may be its user's.
  // A wait for a page or a lock that another process holds meanwhile is not known as one.
  static bool IsOfFuse(absl::string_view channel);

 private:
  struct Stuck {
    uint64_t start_time;
    TimePoint killed_at;
    std::string job_id;
    Owner owner;
    bool told = false;
    // As it was when it was last looked at.
    TimePoint look_due{};
    char state = '?';
    std::string channel = {};
    bool in_driver = false;
  };
  // False: it has ended.
  bool Look(pid_t pid, Stuck& stuck) const;

  const ChannelOf channel_of_;
  std::map<uid_t, TimePoint> looks_from_;
  std::map<pid_t, Stuck> stuck_;  // those that got the signal and were not seen to have ended
};

}  // namespace dtrain::spawn
