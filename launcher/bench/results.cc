// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/results.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace dtrain::bench {
namespace {

nlohmann::json ParseJson(absl::string_view text) {
  return nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

// A finite number that is not negative, else nullopt.
std::optional<double> Number(const nlohmann::json& json, const char* key) {
  if (!json.is_object()) return std::nullopt;
  const auto it = json.find(key);
  if (it == json.end() || !it->is_number()) return std::nullopt;
  const double value = it->get<double>();
  if (!std::isfinite(value) || value < 0) return std::nullopt;
  return value;
}

std::string Text(const nlohmann::json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_string() ? it->get<std::string>() : "";
}

std::optional<Timing> TimingOf(const nlohmann::json& json, const std::string& prefix) {
  const auto number = [&](const char* key) { return Number(json, (prefix + key).c_str()); };
  const auto time = number("time_us");
  const auto algorithm = number("algbw_gbs");
  const auto bus = number("busbw_gbs");
  if (!time || !algorithm || !bus) return std::nullopt;
  const double wrong = std::min(number("wrong").value_or(0), 1e18);
  return Timing{*time, *algorithm, *bus, static_cast<uint64_t>(wrong)};
}

std::optional<SizeRow> SizeOf(const nlohmann::json& json) {
  const auto bytes = Number(json, "bytes");
  const auto timing = TimingOf(json, "");
  if (!bytes || !timing || *bytes > 1e18) return std::nullopt;
  SizeRow row;
  static_cast<Timing&>(row) = *timing;
  row.bytes = static_cast<uint64_t>(*bytes);
  row.in_place = TimingOf(json, "in_place_");
  row.pipelined = Text(json, "manner") == "pipelined";
  row.memory = Text(json, "memory");
  return row;
}

std::optional<PairRow> PairOf(const nlohmann::json& json) {
  const auto from = Number(json, "from");
  const auto to = Number(json, "to");
  const auto latency = Number(json, "latency_us");
  const auto bandwidth = Number(json, "bandwidth_gbs");
  if (!from || !to || !latency || !bandwidth || *from > 1e6 || *to > 1e6) return std::nullopt;
  return PairRow{static_cast<uint32_t>(*from), static_cast<uint32_t>(*to), *latency, *bandwidth};
}

// The object of a line of an array: "[{...},", "{...}]".
nlohmann::json ObjectOfLine(absl::string_view line) {
  const size_t begin = line.find('{');
  const size_t end = line.rfind('}');
  if (begin == absl::string_view::npos || end == absl::string_view::npos || end < begin) return {};
  return ParseJson(line.substr(begin, end - begin + 1));
}

template <typename Row>
std::vector<Row> ReadRows(absl::string_view text,
                          std::optional<Row> (*row_of)(const nlohmann::json&)) {
  std::vector<Row> rows;
  const auto take = [&](const nlohmann::json& json) {
    if (std::optional<Row> row = row_of(json)) rows.push_back(*row);
  };
  const nlohmann::json whole = ParseJson(text);
  if (whole.is_array()) {
    for (const nlohmann::json& json : whole) take(json);
    return rows;
  }
  for (const absl::string_view line : absl::StrSplit(text, '\n')) take(ObjectOfLine(line));
  return rows;
}

double SumOfPhases(const nlohmann::json& phases, bool running) {
  double sum = 0;
  if (!phases.is_array()) return sum;
  for (const nlohmann::json& phase : phases) {
    const std::string name =
        phase.is_object() && phase.contains("name") && phase["name"].is_string()
            ? phase["name"].get<std::string>()
            : "";
    if (name == "stop" || (name == "run") != running) continue;
    sum += Number(phase, "seconds").value_or(0);
  }
  return sum;
}

LaunchFacts::Rank RankOf(const nlohmann::json& json) {
  LaunchFacts::Rank rank;
  if (!json.is_object()) return rank;
  if (const auto host = json.find("host"); host != json.end() && host->is_string()) {
    rank.host = host->get<std::string>();
  }
  const auto it = json.find("collectives");
  if (it == json.end()) return rank;
  rank.operations = Number(*it, "operations").value_or(0);
  rank.bytes = Number(*it, "bytes").value_or(0);
  rank.busy_s = Number(*it, "busy_s").value_or(0);
  rank.wait_s = Number(*it, "wait_s").value_or(0);
  return rank;
}

// Takes "[3] " from the line; -1 when it does not begin so.
int TakeRank(absl::string_view& line) {
  const size_t end = line.find("] ");
  int rank = -1;
  if (!absl::StartsWith(line, "[") || end == absl::string_view::npos ||
      !absl::SimpleAtoi(line.substr(1, end - 1), &rank) || rank < 0) {
    return -1;
  }
  line.remove_prefix(end + 2);
  return rank;
}

}  // namespace

std::vector<SizeRow> ReadSizes(absl::string_view text) { return ReadRows(text, SizeOf); }
std::vector<PairRow> ReadPairs(absl::string_view text) { return ReadRows(text, PairOf); }
std::optional<SizeRow> ReadSizeLine(absl::string_view line) { return SizeOf(ObjectOfLine(line)); }

std::optional<Step> ReadStep(absl::string_view line) {
  Step step;
  step.rank = TakeRank(line);
  if (!absl::ConsumePrefix(&line, "dtrain-step ")) return std::nullopt;
  const nlohmann::json json = ParseJson(absl::StripAsciiWhitespace(line));
  const auto seconds = Number(json, "seconds");
  if (!seconds || *seconds <= 0) return std::nullopt;
  step.seconds = *seconds;
  step.compute = Number(json, "compute").value_or(0);
  step.allreduce = Number(json, "allreduce").value_or(0);
  step.optimiser = Number(json, "optimiser").value_or(Number(json, "optimizer").value_or(0));
  step.samples = Number(json, "samples").value_or(0);
  step.bytes = Number(json, "bytes").value_or(0);
  return step;
}

std::optional<LaunchFacts> ReadLaunchFacts(absl::string_view text) {
  const nlohmann::json json = ParseJson(text);
  if (!json.is_object()) return std::nullopt;
  LaunchFacts facts;
  if (json.contains("phases")) {
    facts.startup_s = SumOfPhases(json["phases"], false);
    facts.run_s = SumOfPhases(json["phases"], true);
  }
  if (json.contains("nodes") && json["nodes"].is_array()) facts.nodes = json["nodes"].size();
  if (json.contains("ranks") && json["ranks"].is_array()) {
    for (const nlohmann::json& rank : json["ranks"]) facts.ranks.push_back(RankOf(rank));
  }
  return facts;
}

}  // namespace dtrain::bench
