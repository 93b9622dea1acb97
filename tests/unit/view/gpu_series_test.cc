// SPDX-License-Identifier: Apache-2.0
#include "common/view/gpu_series.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace dtrain::view {
namespace {

using Json = nlohmann::ordered_json;

v1::GpuStates Say(const std::string& uuid, uint32_t percent) {
  v1::GpuStates states;
  v1::GpuState& gpu = *states.add_gpus();
  gpu.set_uuid(uuid);
  gpu.set_index(3);
  gpu.set_utilisation_percent(percent);
  gpu.set_memory_used_bytes(uint64_t{10} << 20);
  gpu.set_memory_total_bytes(uint64_t{80} << 20);
  gpu.set_power_milliwatts(350'900);
  return states;
}

TEST(GpuSeriesTest, WithoutGpusThereAreNoBins) {
  GpuSeries series;
  series.EndBin();
  EXPECT_EQ(series.Since(0).dump(), R"({"seconds":10,"first":0,"gpus":[]})");
}

TEST(GpuSeriesTest, ABinHasTheLastWord) {
  GpuSeries series;
  series.Take("node1", Say("GPU-a", 10));
  series.Take("node1", Say("GPU-a", 20));
  series.EndBin();
  series.EndBin();  // nothing was heard
  series.Take("node1", Say("GPU-a", 30));
  EXPECT_EQ(series.Since(0).dump(),
            R"({"seconds":10,"first":0,"gpus":[{"host":"node1","gpu":3,"uuid":"GPU-a",)"
            R"("memory_total_mib":80,"utilisation_percent":[20,null],"memory_used_mib":[10,null],)"
            R"("power_watts":[350,null],"temperature_celsius":[null,null]}]})");
}

TEST(GpuSeriesTest, AGpuThatComesLaterHasNothingBefore) {
  GpuSeries series;
  series.Take("node1", Say("GPU-a", 10));
  series.EndBin();
  series.Take("node2", Say("GPU-a", 20));
  series.EndBin();
  const Json json = series.Since(0);
  ASSERT_EQ(json["gpus"].size(), 2U);
  EXPECT_EQ(json["gpus"][0]["utilisation_percent"], Json::parse("[10,null]"));
  EXPECT_EQ(json["gpus"][1]["utilisation_percent"], Json::parse("[null,20]"));
}

TEST(GpuSeriesTest, OnlyWhatIsAskedForAndNoMoreThanAnHour) {
  GpuSeries series;
  for (uint32_t bin = 0; bin < 400; ++bin) {
    series.Take("node1", Say("GPU-a", bin));
    series.EndBin();
  }
  const auto of = [&](const Json& json) { return json["gpus"][0]["utilisation_percent"]; };
  EXPECT_EQ(series.Since(0)["first"], 40);
  EXPECT_EQ(of(series.Since(0)).size(), GpuSeries::kMostBins);
  EXPECT_EQ(of(series.Since(398)), Json::parse("[398,399]"));
  EXPECT_EQ(of(series.Since(0, 1)), Json::parse("[399]"));
  EXPECT_EQ(of(series.Since(400)), Json::array());
  EXPECT_EQ(series.Since(401)["first"], 40);  // another launcher's
  EXPECT_EQ(of(series.Since(0, 0)), Json::array());
}

}  // namespace
}  // namespace dtrain::view
