// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "launcher/cli/page.h"

namespace dtrain::history {

struct Options {
  std::string command;            // "attach", "wait", "history", "show", "rerun", "rm", "prune"
  std::string help;               // to be printed on stdout, and nothing else
  std::vector<std::string> jobs;  // as they were named
  bool json = false;
  bool force = false;
  std::optional<Duration> timeout;
  uint64_t limit = 100;  // 0: none
  uint64_t tail = 20;
  // Flags of prune; what is missing is in the configuration file.
  std::optional<absl::Duration> keep_age;
  std::optional<size_t> keep_jobs;
  std::optional<uint64_t> keep_bytes;
};

// `args` begins with the command. Every error is InvalidArgument, one or two lines.
absl::StatusOr<Options> Parse(const std::vector<std::string>& args);

// Of one of the commands above.
cli::Page PageOf(absl::string_view command);

}  // namespace dtrain::history
