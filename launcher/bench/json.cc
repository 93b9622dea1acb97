// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <nlohmann/json.hpp>

#include "launcher/bench/tables.h"

namespace dtrain::bench {
namespace {

using Json = nlohmann::ordered_json;

// One object a line: easy to read for people and for line tools, too.
std::string Lines(const std::vector<Json>& rows) {
  std::string text = "[";
  for (size_t i = 0; i < rows.size(); ++i) {
    text += i == 0 ? "\n  " : ",\n  ";
    // Bytes that are no UTF-8, in names of hosts, become U+FFFD instead of an exception.
    text += rows[i].dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return text + "\n]\n";
}

void AddTiming(const Timing& timing, const std::string& prefix, Json& json) {
  json[prefix + "time_us"] = timing.time_us;
  json[prefix + "algbw_gbs"] = timing.algbw_gbs;
  json[prefix + "busbw_gbs"] = timing.busbw_gbs;
  json[prefix + "wrong"] = timing.wrong;
}

Json Known(double value) { return value > 0 ? Json(value) : Json(nullptr); }
// There is no infinity in JSON.
Json Known(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json(nullptr);
}

}  // namespace

std::string SizesJson(const std::vector<SizeRow>& rows) {
  std::vector<Json> all;
  for (const SizeRow& row : rows) {
    Json json = {{"bytes", row.bytes}};
    AddTiming(row, "", json);
    if (row.in_place) AddTiming(*row.in_place, "in_place_", json);
    json["manner"] = row.pipelined ? "pipelined" : "latency";
    json["memory"] = row.memory;
    all.push_back(std::move(json));
  }
  return Lines(all);
}

std::string PairsJson(const std::vector<PairRow>& rows, const LaunchFacts& facts) {
  const double median = MedianBandwidth(rows);
  std::vector<Json> all;
  for (const PairRow& row : rows) {
    all.push_back({{"from", row.from},
                   {"to", row.to},
                   {"from_host", row.from < facts.ranks.size() ? facts.ranks[row.from].host : ""},
                   {"to_host", row.to < facts.ranks.size() ? facts.ranks[row.to].host : ""},
                   {"latency_us", row.latency_us},
                   {"bandwidth_gbs", row.bandwidth_gbs},
                   {"slow", row.bandwidth_gbs < kSlowPart * median}});
  }
  return Lines(all);
}

std::string ScalingJson(const std::vector<ScalingRow>& rows) {
  std::vector<Json> all;
  for (const ScalingRow& row : rows) {
    all.push_back({{"ranks", row.count.ranks},
                   {"local", row.count.local},
                   {"startup_s", row.startup},
                   {"run_s", row.run},
                   {"steps", row.steps},
                   {"step_s", Known(row.step)},
                   {"compute_s", row.compute},
                   {"allreduce_s", row.allreduce},
                   {"wait_s", row.waiting},
                   {"optimiser_s", row.optimiser},
                   {"samples_per_step", Known(row.samples)},
                   {"samples_per_s", row.samples > 0 ? Known(row.rate) : Json(nullptr)},
                   {"bytes_per_step", Known(row.bytes)},
                   {"speed_up", row.speed_up},
                   {"efficiency", row.efficiency},
                   {"predicted_allreduce_s", Known(row.predicted_allreduce)},
                   {"pays_from_samples", Known(row.pays_from)}});
  }
  return Lines(all);
}

}  // namespace dtrain::bench
