// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tls/context.h"

namespace dtrain::agent {

// What `dtrain-agent serve` is told by flags and a configuration file of the same names.
struct Config {
  std::string file;             // that it comes from, beside the flags; empty: none
  bool check = false;           // only say whether an agent could start with it
  std::string state_directory;  // empty: DefaultStateDirectory()
  std::string listen;           // "ADDRESS:PORT" for launchers elsewhere; empty: none
  std::string status_listen;    // [IP:]PORT for HTTP on a loopback address; empty: none
  tls::Files tls;
  std::string account_map;  // a file; empty: certificates' names are accounts
  bool allow_root = false;
  std::string spawner;           // agent.sock of dtrain-spawner; empty: none, jobs are our own
  uint32_t launcher_wait_s = 0;  // beyond its lease, for a launcher that stands still
};

// INVALID_ARGUMENT with the flag, or the file and its line; nothing of a file with a mistake
// counts. PERMISSION_DENIED for a file that others can change.
absl::StatusOr<Config> ParseConfig(const std::vector<std::string>& words);

// The flags, for the usage.
std::string ConfigHelp();

}  // namespace dtrain::agent
