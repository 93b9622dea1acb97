// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

// What systemd-logind does when the last session of a user ends: it may end the processes of the
// session, and remove the user's shared memory.
namespace dtrain::os {

// A file of its configuration and its text.
using LogindFile = std::pair<std::string, std::string>;

struct LogindSetting {
  bool on = false;
  std::string from;  // "KillUserProcesses=yes in /etc/systemd/logind.conf"
};

struct LogindSettings {
  LogindSetting kill_user_processes;
  LogindSetting remove_ipc;
  std::vector<std::string> kill_only_users;
  std::vector<std::string> kill_exclude_users;
  bool KillsProcessesOf(absl::string_view user) const;
};

// `files` in the order in which they count, the last one most. Where none says so it is as it was
// built, which the main file has as comments; without those: it kills nothing and removes IPC.
// Pure.
LogindSettings ParseLogind(const std::vector<LogindFile>& files);

// Whether this is the cgroup of a login session, by /proc/PID/cgroup. Pure.
bool IsInSession(absl::string_view cgroups);

struct AtLogout {
  std::string ends_processes;  // the setting that says so, of this very process; empty: it does not
  std::string removes_ipc;     // likewise, of its user
};
// Whether systemd keeps the user's own service manager when nobody of that name is logged in.
bool Lingers(absl::string_view user, const std::string& root = "");

// Of this process. `root` is what stands before all paths; for tests.
AtLogout ReadAtLogout(const std::string& root = "");

}  // namespace dtrain::os
