// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace dtrain::bench {
namespace {

// A run whose steps take `compute` and `allreduce` seconds and 0.01 s of the optimiser.
ScalingRun Training(uint32_t ranks, double compute, double allreduce, double samples,
                    size_t steps = 5) {
  ScalingRun run;
  run.count.ranks = ranks;
  run.facts.startup_s = 0.5;
  run.facts.run_s = 10;
  for (size_t i = 0; i < steps; ++i) {
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      Step step;
      step.rank = static_cast<int>(rank);
      step.seconds = i == 0 ? 100 : compute + allreduce + 0.01;
      step.compute = compute;
      step.allreduce = allreduce;
      step.optimiser = 0.01;
      step.samples = samples;
      step.bytes = 1000;
      run.steps.push_back(step);
    }
  }
  return run;
}

TEST(BenchScaling, ThePredictionIsThatOfAPerfectRing) {
  EXPECT_DOUBLE_EQ(PredictAllreduce(1e9, 2, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(PredictAllreduce(1e9, 4, 2.0), 0.75);
  EXPECT_EQ(PredictAllreduce(1e9, 1, 1.0), 0);
  EXPECT_EQ(PredictAllreduce(1e9, 4, 0), 0);
}

TEST(BenchScaling, TheFirstStepOfEachRankDoesNotCount) {
  const auto rows = Compare({Training(2, 0.1, 0.02, 32)}, std::nullopt);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].steps, 4u);
  EXPECT_DOUBLE_EQ(rows[0].step, 0.13);
  EXPECT_DOUBLE_EQ(rows[0].compute, 0.1);
  EXPECT_DOUBLE_EQ(rows[0].optimiser, 0.01);
  EXPECT_EQ(rows[0].startup, 0.5);
}

TEST(BenchScaling, AnOnlyStepCounts) {
  const auto rows = Compare({Training(2, 0.1, 0.02, 32, 1)}, std::nullopt);
  EXPECT_EQ(rows[0].steps, 1u);
  EXPECT_EQ(rows[0].step, 100);
}

TEST(BenchScaling, SpeedUpIsThatOfSamplesASecondAgainstTheFewestRanks) {
  const auto rows = Compare({Training(4, 0.1, 0.14, 32), Training(1, 0.115, 0, 32)}, std::nullopt);
  EXPECT_NEAR(rows[1].speed_up, 1, 1e-12);
  EXPECT_NEAR(rows[0].speed_up, 4 * 0.125 / 0.25, 1e-12);
  EXPECT_NEAR(rows[0].efficiency, 0.5, 1e-12);
  EXPECT_NEAR(rows[0].rate, 4 * 32 / 0.25, 1e-9);
}

TEST(BenchScaling, TheBatchIsTheUsersWhereTheMarksDoNotSay) {
  EXPECT_EQ(Compare({Training(1, 0.1, 0, 0)}, 16)[0].samples, 16);
  EXPECT_EQ(Compare({Training(1, 0.1, 0, 32)}, 16)[0].samples, 32);
  EXPECT_EQ(Compare({Training(1, 0.1, 0, 0)}, std::nullopt)[0].samples, 0);
}

TEST(BenchScaling, WithoutMarksTheWholeRunAndTheCountersSpeak) {
  ScalingRun one;
  one.count.ranks = 1;
  one.facts.run_s = 8;
  ScalingRun two;
  two.count.ranks = 2;
  two.facts.run_s = 5;
  two.facts.ranks = {{"a", 10, 4000, 1.0, 0.25}, {"b", 10, 4000, 1.0, 0.75}};
  const auto rows = Compare({one, two}, std::nullopt);
  EXPECT_EQ(rows[1].step, 0);
  EXPECT_DOUBLE_EQ(rows[1].speed_up, 1.6);
  EXPECT_DOUBLE_EQ(rows[1].efficiency, 0.8);
  EXPECT_DOUBLE_EQ(rows[1].allreduce, 1);
  EXPECT_DOUBLE_EQ(rows[1].waiting, 0.5);
  EXPECT_DOUBLE_EQ(rows[1].compute, 4);
  EXPECT_EQ(BytesPerStep(two), 0);
}

TEST(BenchScaling, CountersFillWhatMarksLeaveOut) {
  ScalingRun run;
  run.count.ranks = 2;
  run.facts.run_s = 1;
  run.facts.ranks = {{"a", 10, 4000, 0.4, 0.1}, {"b", 10, 4000, 0.4, 0.1}};
  for (int i = 0; i < 4; ++i) run.steps.push_back({0, 0.2, 0, 0, 0, 0, 0});
  run.busbw_gbs = 1e-6;
  EXPECT_DOUBLE_EQ(BytesPerStep(run), 1000);
  const auto rows = Compare({run}, std::nullopt);
  EXPECT_DOUBLE_EQ(rows[0].allreduce, 0.1);
  EXPECT_DOUBLE_EQ(rows[0].compute, 0.1);
  ASSERT_TRUE(rows[0].predicted_allreduce.has_value());
  EXPECT_DOUBLE_EQ(*rows[0].predicted_allreduce, 1.0);
}

TEST(BenchScaling, DistributingPaysWhenASampleSavedIsWorthTheAllreduce) {
  // 1 ms a sample, 10 ms optimiser, 100 ms all-reduce among 2: pays from b with
  // 2 / (b + 110) > 1 / (b + 10), in ms: b > 90.
  const auto rows = Compare({Training(1, 0.032, 0, 32), Training(2, 0.032, 0.1, 32)}, std::nullopt);
  EXPECT_FALSE(rows[0].pays_from.has_value());
  ASSERT_TRUE(rows[1].pays_from.has_value());
  EXPECT_NEAR(*rows[1].pays_from, 90, 1e-6);
  // Where it is so says the model itself.
  EXPECT_NEAR(2 / (0.09 + 0.11), 1 / (0.09 + 0.01), 1e-9);
}

TEST(BenchScaling, DistributingThatCostsLessThanItSavesAnywayPaysAlways) {
  const auto rows =
      Compare({Training(1, 0.032, 0, 32), Training(2, 0.032, 0.001, 32)}, std::nullopt);
  EXPECT_EQ(rows[1].pays_from, 0);
}

// Two ranks on one core.
TEST(BenchScaling, DistributingNeverPaysWhenComputingIsSlowerByAsMuch) {
  const auto rows =
      Compare({Training(1, 0.032, 0, 32), Training(2, 0.065, 0.001, 32)}, std::nullopt);
  ASSERT_TRUE(rows[1].pays_from.has_value());
  EXPECT_TRUE(std::isinf(*rows[1].pays_from));
}

TEST(BenchScaling, NothingIsComparedWithNothing) {
  EXPECT_TRUE(Compare({}, std::nullopt).empty());
  ScalingRun run;
  run.count.ranks = 2;
  const auto rows = Compare({run}, std::nullopt);
  EXPECT_EQ(rows[0].speed_up, 0);
  EXPECT_FALSE(rows[0].pays_from.has_value());
}

}  // namespace
}  // namespace dtrain::bench
