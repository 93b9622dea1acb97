// SPDX-License-Identifier: Apache-2.0
#include "common/view/gpu_series.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace dtrain::view {
namespace {

using Json = nlohmann::ordered_json;

// More than the largest jobs have; a node may say what it likes.
constexpr size_t kMostGpus = 20'000;
constexpr uint64_t kMib = uint64_t{1} << 20;
constexpr uint64_t kMilliwatts = 1000;

int32_t Bounded(uint64_t value) {
  return static_cast<int32_t>(std::min<uint64_t>(value, INT32_MAX));
}

Json ValueOf(int64_t value) { return value < 0 ? Json() : Json(value); }

}  // namespace

void GpuSeries::Take(const std::string& host, const v1::GpuStates& states) {
  for (const v1::GpuState& state : states.gpus()) {
    const std::pair key(host, state.uuid());
    if (gpus_.size() >= kMostGpus && gpus_.count(key) == 0) return;
    Gpu& gpu = gpus_[key];
    gpu.index = state.index();
    if (state.has_memory_total_bytes()) gpu.total_mib = Bounded(state.memory_total_bytes() / kMib);
    Sample sample;
    if (state.has_utilisation_percent()) sample.percent = Bounded(state.utilisation_percent());
    if (state.has_memory_used_bytes()) sample.used_mib = Bounded(state.memory_used_bytes() / kMib);
    if (state.has_power_milliwatts()) {
      sample.watts = Bounded(state.power_milliwatts() / kMilliwatts);
    }
    if (state.has_temperature_celsius()) sample.celsius = Bounded(state.temperature_celsius());
    gpu.now = sample;
  }
}

void GpuSeries::EndBin() {
  if (gpus_.empty()) return;
  ++end_;
  for (auto& [key, gpu] : gpus_) {
    gpu.samples.push_back(gpu.now.value_or(Sample()));
    gpu.now.reset();
    if (gpu.samples.size() > kMostBins) gpu.samples.pop_front();
  }
}

Json GpuSeries::Since(uint64_t bin, uint64_t most) const {
  const uint64_t kept = std::min<uint64_t>(end_, kMostBins);
  // Of bins that are still to come: another launcher's.
  const uint64_t from =
      std::max(bin > end_ ? end_ - kept : std::max(bin, end_ - kept), end_ - std::min(end_, most));
  Json gpus = Json::array();
  for (const auto& [key, gpu] : gpus_) {
    Json percent = Json::array(), used = Json::array(), watts = Json::array(),
         celsius = Json::array();
    for (uint64_t each = from; each < end_; ++each) {
      // One that came later has none of the first.
      const uint64_t back = end_ - each;
      const Sample sample = back > gpu.samples.size()
                                ? Sample()
                                : gpu.samples[gpu.samples.size() - static_cast<size_t>(back)];
      percent.push_back(ValueOf(sample.percent));
      used.push_back(ValueOf(sample.used_mib));
      watts.push_back(ValueOf(sample.watts));
      celsius.push_back(ValueOf(sample.celsius));
    }
    gpus.push_back({{"host", key.first},
                    {"gpu", gpu.index},
                    {"uuid", key.second},
                    {"memory_total_mib", ValueOf(gpu.total_mib)},
                    {"utilisation_percent", std::move(percent)},
                    {"memory_used_mib", std::move(used)},
                    {"power_watts", std::move(watts)},
                    {"temperature_celsius", std::move(celsius)}});
  }
  return {{"seconds", kBin.count()}, {"first", from}, {"gpus", std::move(gpus)}};
}

}  // namespace dtrain::view
