// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "launcher/elastic/runs.h"

namespace dtrain::elastic {

struct ElasticOptions {
  Least start;                                       // of round 1: -np
  Least later;                                       // of all others: --min-np, not more
  Most most;                                         // --max-np
  std::optional<uint32_t> most_resets;               // --reset-limit
  Duration time_limit = Duration::zero();            // --timeout; zero: none
  Duration join_timeout = std::chrono::minutes(10);  // --join-timeout
  // From the first failure of a round until those that have not come back are named.
  Duration stuck = std::chrono::seconds(60);
  // All hosts that can ever come; empty: a command finds them.
  std::vector<std::string> fixed_hosts;
  RunId first_run;
  uint32_t first_number = 0;  // of a worker

  const Least& least(uint64_t round) const { return round <= 1 ? start : later; }
};

}  // namespace dtrain::elastic
