// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/config/toml.h"
#include "launcher/cli/options.h"

namespace dtrain::cli {

// What the section [history] of the configuration file says of jobs that have ended: how
// long, how many and how much of them is kept.
struct HistoryConfig {
  std::optional<Duration> keep;
  std::optional<uint64_t> jobs;
  std::optional<uint64_t> bytes;
};

// `entries`: all of the file at `path`. Errors are INVALID_ARGUMENT. Pure.
absl::StatusOr<HistoryConfig> HistoryConfigOf(const std::string& path,
                                              const std::vector<config::Entry>& entries);

// From the file that DTRAIN_CONFIG names, or the usual one; nothing if that is missing.
absl::StatusOr<HistoryConfig> ReadHistoryConfig(const Surroundings& surroundings);

}  // namespace dtrain::cli
