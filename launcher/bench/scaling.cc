// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/scaling.h"

#include <algorithm>
#include <limits>
#include <map>

namespace dtrain::bench {
namespace {

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// Without the first step of each rank, which loads, compiles and connects; unless it has no other.
std::vector<Step> Steady(const std::vector<Step>& steps) {
  std::map<int, size_t> of_rank;
  for (const Step& step : steps) ++of_rank[step.rank];
  std::map<int, size_t> seen;
  std::vector<Step> steady;
  for (const Step& step : steps) {
    if (seen[step.rank]++ > 0 || of_rank[step.rank] == 1) steady.push_back(step);
  }
  return steady;
}

double MedianOf(const std::vector<Step>& steps, double Step::*field) {
  std::vector<double> values;
  for (const Step& step : steps) values.push_back(step.*field);
  return Median(std::move(values));
}

size_t StepsOfOneRank(const std::vector<Step>& steps) {
  std::map<int, size_t> of_rank;
  for (const Step& step : steps) ++of_rank[step.rank];
  size_t most = 0;
  for (const auto& [rank, count] : of_rank) most = std::max(most, count);
  return most;
}

double MedianOf(const LaunchFacts& facts, double LaunchFacts::Rank::*field) {
  std::vector<double> values;
  for (const LaunchFacts::Rank& rank : facts.ranks) values.push_back(rank.*field);
  return Median(std::move(values));
}

ScalingRow RowOf(const ScalingRun& run, std::optional<double> batch) {
  ScalingRow row;
  row.count = run.count;
  row.startup = run.facts.startup_s;
  row.run = run.facts.run_s;
  const std::vector<Step> steady = Steady(run.steps);
  row.steps = StepsOfOneRank(steady);
  row.step = MedianOf(steady, &Step::seconds);
  row.compute = MedianOf(steady, &Step::compute);
  row.allreduce = MedianOf(steady, &Step::allreduce);
  row.optimiser = MedianOf(steady, &Step::optimiser);
  row.samples = MedianOf(steady, &Step::samples);
  if (row.samples == 0 && row.step > 0) row.samples = batch.value_or(0);
  // The counters are of the whole run, its first step included.
  const double all_steps = std::max<double>(1, static_cast<double>(StepsOfOneRank(run.steps)));
  if (row.allreduce == 0) {
    row.allreduce = MedianOf(run.facts, &LaunchFacts::Rank::busy_s) / all_steps;
  }
  row.waiting = MedianOf(run.facts, &LaunchFacts::Rank::wait_s) / all_steps;
  row.bytes = BytesPerStep(run);
  const double whole = row.step > 0 ? row.step : row.run;
  if (row.compute == 0) row.compute = std::max(0.0, whole - row.allreduce - row.optimiser);
  const double each = row.samples > 0 ? row.samples : 1;
  if (row.step > 0) row.rate = each * run.count.ranks / row.step;
  if (run.busbw_gbs && row.bytes > 0 && run.count.ranks > 1) {
    row.predicted_allreduce = PredictAllreduce(row.bytes, run.count.ranks, *run.busbw_gbs);
  }
  return row;
}

}  // namespace

double PredictAllreduce(double bytes, uint32_t ranks, double busbw_gbs) {
  if (busbw_gbs <= 0 || ranks == 0) return 0;
  return 2 * bytes * (ranks - 1.0) / ranks / (busbw_gbs * 1e9);
}

double BytesPerStep(const ScalingRun& run) {
  const double marked = MedianOf(Steady(run.steps), &Step::bytes);
  const size_t steps = StepsOfOneRank(run.steps);
  if (marked > 0 || steps == 0) return marked;
  return MedianOf(run.facts, &LaunchFacts::Rank::bytes) / static_cast<double>(steps);
}

std::optional<double> PaysFrom(const ScalingRow& base, const ScalingRow& row) {
  const double few = base.count.ranks;
  const double many = row.count.ranks;
  if (many <= few || base.samples <= 0 || base.step <= 0 || row.step <= 0 || base.compute <= 0 ||
      row.samples <= 0) {
    return std::nullopt;
  }
  // A step of b samples takes c b + r with few ranks, where r is all that does not grow with b, and
  // C b + R with many. Many are faster when many / (C b + R) > few / (c b + r).
  const double c = base.compute / base.samples;
  const double r = base.step - base.compute;
  const double big_c = row.compute / row.samples;
  const double big_r = row.step - row.compute;
  const double gain = many * c - few * big_c;
  if (gain <= 0) return std::numeric_limits<double>::infinity();
  return std::max(0.0, (few * big_r - many * r) / gain);
}

std::vector<ScalingRow> Compare(const std::vector<ScalingRun>& runs, std::optional<double> batch) {
  std::vector<ScalingRow> rows;
  for (const ScalingRun& run : runs) rows.push_back(RowOf(run, batch));
  if (rows.empty()) return rows;
  const ScalingRow base = *std::min_element(
      rows.begin(), rows.end(),
      [](const ScalingRow& a, const ScalingRow& b) { return a.count.ranks < b.count.ranks; });
  for (ScalingRow& row : rows) {
    // Without marked lines, how long the whole command took: it is then the same work divided.
    if (base.rate > 0 && row.rate > 0) {
      row.speed_up = row.rate / base.rate;
    } else if (base.run > 0 && row.run > 0) {
      row.speed_up = base.run / row.run;
    }
    row.efficiency = row.speed_up * base.count.ranks / row.count.ranks;
    row.pays_from = PaysFrom(base, row);
  }
  return rows;
}

}  // namespace dtrain::bench
