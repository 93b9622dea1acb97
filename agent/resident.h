// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

// Where a resident agent is to be found on its own node, by those who serve and those who look.
namespace dtrain::agent {

// Of a resident agent of this user: $XDG_RUNTIME_DIR/dtrain-agent or /run/user/UID/dtrain-agent;
// of one for all users /run/dtrain-agent. All of them are on file systems that a reboot empties.
std::string DefaultStateDirectory(bool for_all);

// What this very program is: its version and the hash that the linker has put into it.
std::string BuildId();

// The state directory of one resident agent, held by a lock as long as this lives. In it: `lock`,
// `agent.sock`, `http.sock`, `build`, and `jobs/`, where each job has a folder.
class ResidentDirectory {
 public:
  // Makes it, mode 0755 when users reach the sockets in it, 0700 else. ALREADY_EXISTS: another
  // agent has it.
  static absl::StatusOr<ResidentDirectory> Hold(std::string path, bool for_all);

  const std::string& path() const { return path_; }
  std::string socket_path() const { return path_ + "/agent.sock"; }
  std::string http_path() const { return path_ + "/http.sock"; }
  std::string token_path() const { return path_ + "/http.token"; }
  // An agent that leaves no job behind takes the socket of Listen away, unless it is systemd's:
  // who finds one that is not listened at takes us for one that is restarted, or has died.
  void Leave() const;
  // A listening socket that is found under http_path.
  absl::StatusOr<os::UniqueFd> ListenHttp(std::optional<os::UniqueFd> given) const {
    return ListenAt(http_path(), std::move(given));
  }
  // A listening socket that is found under socket_path. Says which build serves there.
  absl::StatusOr<os::UniqueFd> Listen(std::optional<os::UniqueFd> given);

 private:
  // The one that systemd has given, to which `path` then leads, else one in place of what a killed
  // agent has left there.
  absl::StatusOr<os::UniqueFd> ListenAt(const std::string& path,
                                        std::optional<os::UniqueFd> given) const;
  absl::StatusOr<os::UniqueFd> Bind(const std::string& socket_path) const;
  ResidentDirectory(std::string path, os::UniqueFd lock, bool for_all)
      : path_(std::move(path)), lock_(std::move(lock)), for_all_(for_all) {}
  std::string path_;
  os::UniqueFd lock_;
  bool for_all_ = false;
  bool bound_ = false;  // the socket of Listen is ours
};

struct FoundResident {
  os::UniqueFd stream;      // empty: no usable one was found
  std::string other_build;  // BuildId of one that runs here and that we may not use
  std::string silence;  // of one of this build that has not left in order: why it cannot be used
  bool refuses_root = false;  // one of this build runs here, but no jobs of ours, who are root
};

// A connection to the resident agent of this node, the user's own or else the system's, when there
// is one of this very build. The user's own counts only in a directory that nobody but this user
// and root can change. DTRAIN_AGENT_STATE names another directory instead, which may be anybody's,
// or "none". `any_build`: rather one of this build, but else another one. `for_launch`: only one
// that runs our jobs. Fails when it cannot be told whether there is one.
absl::StatusOr<FoundResident> ConnectToResident(bool any_build, bool for_launch);

}  // namespace dtrain::agent
