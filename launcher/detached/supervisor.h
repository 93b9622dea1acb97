// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "launcher/detached/job_folder.h"

// Who starts the launcher of a detached job again when it is killed: systemd's manager of the user,
// or a process of ours, the minder.

namespace dtrain::detached {

// How often one is started again, and in which time. Any more, and something is wrong that a new
// start does not mend.
inline constexpr int kMostRestarts = 5;
inline constexpr Duration kRestartWindow = std::chrono::minutes(10);

enum class Supervisor { kSystemd, kMinder };

// A launcher that must win over others, of which nobody knows how many there were, has a generation
// that is so much higher.
inline constexpr uint64_t kAheadOfOthers = 1000;

// What is known of this machine and this user.
struct SupervisorFacts {
  std::string user;
  std::string systemd_run;     // its path; empty: not installed
  bool manager_runs = false;   // systemd's, of this user
  bool lingers = false;        // it runs on when the user logs out
  std::string ends_at_logout;  // the setting by which logind ends us; empty: it does not
  std::string program;         // our own path
  std::string place;           // where jobs are kept
};
SupervisorFacts ReadSupervisorFacts(const std::string& place);

// Pure. FAILED_PRECONDITION: whatever we start ends when the user logs out; what to do.
absl::StatusOr<Supervisor> ChooseSupervisor(const SupervisorFacts& facts);

// The command that makes the launcher of a job a service of the user's manager. Pure.
std::vector<std::string> SystemdRunWords(const SupervisorFacts& facts, const JobFolder& job);

// The unit that a process with these cgroups (/proc/PID/cgroup) runs in, if it is that of the job;
// else empty. Pure.
std::string UnitOf(absl::string_view cgroups, absl::string_view job_id);

// Who looks after a job's launcher now.
struct Supervision {
  std::string unit;       // a systemd unit, or
  v1::Launcher minder;    // a process (0: none)
  std::string host;       // where
  uint64_t restarts = 0;  // launchers after the first

  bool IsThere() const { return !unit.empty() || minder.pid() != 0; }
  std::string Text() const;  // "systemd unit dtrain-x.service", "minder, process 12", "nobody"
};
Supervision SupervisionOf(const JobFolder& job);

// When a launcher that was killed may be started again. Pure.
class RestartLimit {
 public:
  // One was killed: whether it is started again.
  bool OnDeath(TimePoint now);
  int restarts() const { return static_cast<int>(restarts_.size()); }  // within the window

 private:
  std::vector<TimePoint> restarts_;
};

// The word behind `dtrain` by which it becomes a minder.
inline constexpr char kMinderWord[] = "mind";

// The process that starts the launcher of the job in `folder` again when it is killed. Stdout and
// stderr are the job's launcher.log. One that ends by itself is not started again, and the minder
// ends, too. It may be killed: the launcher runs on. Returns its exit code.
int RunMinder(const std::string& folder);

}  // namespace dtrain::detached
