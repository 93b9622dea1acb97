// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/cli/options.h"
#include "launcher/detached/job_folder.h"

namespace dtrain::status {

// Of a job that has ended: hosts that it lost, where its workers may live on for some time.
struct LeftWorkers {
  std::string job;
  std::vector<std::string> hosts;
  absl::Time gone;            // by then they have ended by themselves
  cli::LaunchOptions launch;  // as it was launched, without its hosts
};

// Nothing: it has none, or no more. Errors: it has lost hosts, and more is not known.
absl::StatusOr<std::optional<LeftWorkers>> FindLeftWorkers(const detached::JobFolder& job);
// "dtrain-abc has lost node1, where its workers may live on until 2026-11-27 01:02:03".
std::string TextOf(const LeftWorkers& left);
// That and what to do, of a job that has ended; empty: nothing is left, as far as is known.
std::string LeftWorkersOf(const detached::JobFolder& job);

}  // namespace dtrain::status
