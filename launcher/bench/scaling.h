// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "launcher/bench/options.h"
#include "launcher/bench/results.h"

// What runs of one command at several numbers of ranks say together. Pure.
namespace dtrain::bench {

// One run, as it was seen.
struct ScalingRun {
  RankCount count;
  LaunchFacts facts;
  std::vector<Step> steps;          // of all ranks, in the order of arrival
  std::optional<double> busbw_gbs;  // of an all-reduce of this run's bytes per step
};

// One run, as it compares. Seconds; those of phases are per step, of the middle step.
struct ScalingRow {
  RankCount count;
  double startup = 0;
  double run = 0;
  size_t steps = 0;  // of one rank, that were counted
  double step = 0;   // 0: unknown, no marked lines; the others are then of the whole run
  double compute = 0;
  double allreduce = 0;
  double optimiser = 0;
  double waiting = 0;     // within `allreduce`: for the last rank; of libdtrain's counters
  double samples = 0;     // of one rank in one step; 0: unknown
  double bytes = 0;       // that one rank all-reduces in one step; 0: unknown
  double rate = 0;        // samples a second of all ranks; where unknown, steps of all ranks
  double speed_up = 0;    // of the rate, against the run with the fewest ranks
  double efficiency = 0;  // of that, what more ranks could have brought
  std::optional<double> predicted_allreduce;  // seconds per step
  std::optional<double> pays_from;            // samples of one rank in one step; see PaysFrom
};

// 2 L (p - 1) / p over the bandwidth: what an all-reduce of L bytes among p ranks takes.
double PredictAllreduce(double bytes, uint32_t ranks, double busbw_gbs);

// From how many samples of one rank in one step on `row` trains more samples a second than `base`,
// if computing takes time in proportion to the samples, and all else is as measured. 0: always;
// infinite: never, because already the computing is slower by as much as there are more ranks.
// nullopt: not known.
std::optional<double> PaysFrom(const ScalingRow& base, const ScalingRow& row);

// All-reduced bytes per step of a rank, from marked lines or counters; 0 when neither tells.
double BytesPerStep(const ScalingRun& run);

// `batch`: samples of one rank in one step where the marks do not say.
std::vector<ScalingRow> Compare(const std::vector<ScalingRun>& runs, std::optional<double> batch);

}  // namespace dtrain::bench
