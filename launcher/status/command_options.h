// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/page.h"

namespace dtrain::status {

struct CommandOptions {
  std::string command;  // "ps", "status", "logs", "stop", "detach", "top", "page", "nodes"
  std::string help;     // to be printed on stdout, and nothing else
  std::string job;      // empty: the only one
  bool json = false;
  bool follow = false;
  bool raw = false;                   // also on a terminal, of somebody else's job
  std::optional<uint32_t> rank;       // none: all
  std::optional<std::string> stream;  // "stdout", "stderr"; none: both
  bool timestamps = false;
  std::optional<int64_t> since_unix_nanos;
  std::optional<uint32_t> attempt;  // none: the last
  std::optional<uint64_t> tail;     // lines; none: all
  bool all = false;                 // ended jobs, too
  std::string listen = "0";
  bool open = false;
  bool node =
      false;  // of `page`: `job` is the name of a host, empty: the only one, or this machine
  // Mentions of cli::HostFlags(), for cli::ParseHosts.
  std::vector<std::string> host_words;
  bool names_hosts = false;  // --hostfile or --hosts is among them
};

// `args` begins with the command. Every error is InvalidArgument, one or two lines.
absl::StatusOr<CommandOptions> ParseCommand(const std::vector<std::string>& args);

// Of one of the commands above.
cli::Page PageOf(absl::string_view command);

}  // namespace dtrain::status
