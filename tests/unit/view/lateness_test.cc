// SPDX-License-Identifier: Apache-2.0
#include "common/view/lateness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace dtrain::view {
namespace {

using Json = nlohmann::ordered_json;
using Waits = std::vector<std::optional<uint64_t>>;

constexpr uint64_t kSecond = 1'000'000'000;

TEST(LatenessTest, WhoWaitsLeastIsLate) {
  Lateness lateness;
  lateness.Sample(Waits{0, 0, 0}, Lateness::kBin);
  lateness.Sample(Waits{5 * kSecond, 0, 5 * kSecond}, Lateness::kBin);
  const Json json = lateness.Since(0);
  EXPECT_EQ(json["seconds"], 10);
  EXPECT_EQ(json["first"], 0);
  // Half of the time: 32 of 64.
  EXPECT_EQ(json["late"], Json({"---", "AgA"}));
}

TEST(LatenessTest, NobodyIsLateWhereAllWaitAlike) {
  Lateness lateness;
  lateness.Sample(Waits{kSecond, 2 * kSecond}, Lateness::kBin);
  lateness.Sample(Waits{4 * kSecond, 5 * kSecond}, Lateness::kBin);
  EXPECT_EQ(lateness.Since(1)["late"], Json({"AA"}));
}

TEST(LatenessTest, WithoutDataThereIsNothing) {
  Lateness lateness;
  lateness.Sample(Waits(4), Lateness::kBin);
  lateness.Sample({}, Lateness::kBin);
  EXPECT_EQ(lateness.Since(0)["late"], Json::array());
  lateness.Sample(Waits{std::nullopt, 0, 0}, Lateness::kBin);
  lateness.Sample(Waits{std::nullopt, 0, kSecond * 10}, Lateness::kBin);
  EXPECT_EQ(lateness.Since(1)["late"], Json({"-/A"}));
}

// The counters are in memory that the workers write.
TEST(LatenessTest, AbsurdCountersDoNoHarm) {
  Lateness lateness;
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  lateness.Sample(Waits{kMost, 0, 7}, Lateness::kBin);
  lateness.Sample(Waits{0, kMost, 7}, Lateness::kBin);
  lateness.Sample(Waits{kMost, 0, 7}, Duration(-5));
  EXPECT_EQ(lateness.Since(1)["late"], Json({"-A/", "A-/"}));
}

TEST(LatenessTest, KeepsAnHourAndTellsFromWhereOn) {
  Lateness lateness;
  for (size_t i = 0; i < Lateness::kMostBins + 4; ++i) lateness.Sample(Waits{0}, Lateness::kBin);
  EXPECT_EQ(lateness.Since(0)["first"], 4);
  EXPECT_EQ(lateness.Since(0)["late"].size(), Lateness::kMostBins);
  EXPECT_EQ(lateness.Since(0, 60)["first"], 304);
  EXPECT_EQ(lateness.Since(0, 60)["late"].size(), 60u);
  EXPECT_EQ(lateness.Since(360)["first"], 360);
  EXPECT_EQ(lateness.Since(364)["late"].size(), 0u);
  // Another launcher's.
  EXPECT_EQ(lateness.Since(9999)["first"], 4);
}

}  // namespace
}  // namespace dtrain::view
