// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "launcher/bench/results.h"
#include "launcher/bench/scaling.h"

// The charts of the three tools, as SVG. Pure.
namespace dtrain::bench {

// Bus bandwidth and time by size, all axes logarithmic.
std::string SizePlot(const std::vector<SizeRow>& rows, const std::string& title);

// A heat map of the bandwidth between hosts; slow pairs are framed.
std::string PairPlot(const std::vector<PairRow>& rows, const LaunchFacts& facts,
                     const std::string& title);

// Speed-up by ranks beside the ideal one, and what a step consists of.
std::string ScalingPlot(const std::vector<ScalingRow>& rows, const std::string& title);

// "64 KiB", "97.5 MiB", "4 B".
std::string SizeText(double bytes);

}  // namespace dtrain::bench
