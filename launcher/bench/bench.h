// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "launcher/bench/options.h"

namespace dtrain::bench {

// `dtrain bench`: launches, reads, compares, prints. `environment` is that of the launches. Returns
// the exit code: that of the launch that failed; 1 for a worker that printed nothing to read.
int Run(const Options& options, const std::vector<std::string>& environment);

// The words after `dtrain launch` with which the tool's worker, or one run of scaling's command, is
// started. `stage`: the folder that has the worker, by its path there; empty: the hosts have it.
// Pure.
std::vector<std::string> WorkerLaunch(const Options& options, const std::string& worker,
                                      const std::string& stage = "");
std::vector<std::string> ScalingLaunch(const Options& options, RankCount count);
// A short run of dtrain-allreduce in the same place, for the prediction.
std::vector<std::string> PredictionLaunch(const Options& options, RankCount count,
                                          const std::string& worker, double bytes,
                                          const std::string& stage = "");

// Whether the launch is on hosts that are named, and the worker can travel there. Pure.
bool GoesElsewhere(const Options& options);

}  // namespace dtrain::bench
