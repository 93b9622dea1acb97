// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "launcher/cli/flag_table.h"
#include "launcher/cli/mentions.h"

// The flags of elastic Horovod. Pure.
namespace dtrain::cli {

std::vector<Flag> ElasticFlags();

// With --elastic: refuses what does not go together with it, and sets what follows from it.
// Without it: refuses flags that are about it. `several`: the job has several programs.
absl::Status TakeElastic(const Mentions& mentions, bool several, RawLaunch& raw);

// Its workers' environment must leave them their controller.
absl::Status CheckElasticEnvironment(const LaunchOptions& options);

}  // namespace dtrain::cli
