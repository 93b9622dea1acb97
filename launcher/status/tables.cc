// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/tables.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

// Of a page; a job may have thousands.
constexpr size_t kMostRows = 64;
constexpr size_t kCommandBytes = 60;

const Json kNothing;

const Json& At(const Json& json, const char* key) {
  if (!json.is_object()) return kNothing;
  auto it = json.find(key);
  return it == json.end() ? kNothing : *it;
}

std::string Text(const Json& json, size_t limit = 60) {
  if (json.is_string()) return Escape(json.get<std::string>(), limit);
  if (json.is_number_integer()) return absl::StrCat(json.get<int64_t>());
  return "-";
}

double Number(const Json& json) { return json.is_number() ? json.get<double>() : 0; }

// "12 s", "3 min 20 s", "2 h 5 min", "3 d 2 h".
std::string Age(double seconds) {
  const auto s = static_cast<int64_t>(std::max(seconds, 0.0));
  if (s < 60) return absl::StrFormat("%d s", s);
  if (s < 3600) return absl::StrFormat("%d min %d s", s / 60, s % 60);
  if (s < 86400) return absl::StrFormat("%d h %d min", s / 3600, s / 60 % 60);
  return absl::StrFormat("%d d %d h", s / 86400, s / 3600 % 24);
}

std::string Command(const Json& job) {
  std::vector<std::string> words;
  for (const Json& word : At(job, "command")) words.push_back(Text(word, kCommandBytes));
  const std::string all = absl::StrJoin(words, " ");
  return all.size() <= kCommandBytes ? all : absl::StrCat(all.substr(0, kCommandBytes), "...");
}

// Columns as wide as their widest text, two spaces apart; none after the last.
std::string Align(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const Row& row : rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      absl::StrAppend(&out, row[i], std::string(widths[i] - row[i].size() + 2, ' '));
    }
    absl::StrAppend(&out, row.back(), "\n");
  }
  return out;
}

// "4 running", "2 running, 1 ended, 1 failed".
std::string Ranks(const Json& job) {
  const Json& ranks = At(job, "ranks");
  std::vector<std::string> parts;
  const int64_t failed = static_cast<int64_t>(Number(At(ranks, "failed")));
  for (const char* state : {"waiting", "running", "ended"}) {
    int64_t n = static_cast<int64_t>(Number(At(ranks, state)));
    if (state == std::string("ended")) n -= failed;
    if (n > 0) parts.push_back(absl::StrCat(n, " ", state));
  }
  if (failed > 0) parts.push_back(absl::StrCat(failed, " failed"));
  return parts.empty() ? "-" : absl::StrJoin(parts, ", ");
}

std::string Collective(const Json& rank) {
  const Json& collectives = At(rank, "collectives");
  if (!collectives.is_object()) return "";
  const Json& now = At(collectives, "now");
  if (!now.is_object()) {
    return absl::StrFormat("%s done, waited %.1f s", Text(At(collectives, "operations")),
                           Number(At(collectives, "wait_s")));
  }
  return absl::StrFormat("in %s %s for %.1f s", Text(At(now, "kind")), Text(At(now, "number")),
                         Number(At(now, "seconds")));
}

std::string RankState(const Json& rank) {
  if (At(rank, "signal").is_number()) return absl::StrCat("killed by ", Text(At(rank, "signal")));
  if (At(rank, "exit_code").is_number()) return absl::StrCat("exit ", Text(At(rank, "exit_code")));
  return Text(At(rank, "state"));
}

}  // namespace

std::string JobsTable(const Json& jobs) {
  if (jobs.empty()) return "no jobs\n";
  std::vector<Row> rows = {{"JOB", "PHASE", "RANKS", "NODES", "AGE", "COMMAND"}};
  for (const Json& job : jobs) {
    rows.push_back({Text(At(job, "id")), Text(At(job, "phase")), Ranks(job), Text(At(job, "nodes")),
                    Age(Number(At(job, "seconds"))), Command(job)});
  }
  return Align(rows);
}

std::string JobPage(const Json& all) {
  const Json& job = At(all, "job");
  std::string out =
      absl::StrCat(Text(At(job, "id")), ": ", Text(At(job, "phase")), ", ", Ranks(job), ", ",
                   Age(Number(At(job, "seconds"))), "\n", Command(job), "\n");
  for (const Json& node : At(job, "waiting_for")) {
    absl::StrAppend(&out, "waiting for ", Text(At(node, "host")), ": ", Text(At(node, "what"), 200),
                    "\n");
  }
  std::vector<Row> nodes = {{"NODE", "STATE", "CPUS", "GPUS"}};
  for (const Json& node : At(all, "nodes")) {
    const Json& gpus = At(node, "gpus");
    nodes.push_back({Text(At(node, "host")), Text(At(node, "state")), Text(At(node, "cpus")),
                     gpus.is_array() ? absl::StrCat(gpus.size()) : "-"});
    if (nodes.size() > kMostRows) break;
  }
  absl::StrAppend(&out, "\n", Align(nodes));
  std::vector<Row> ranks = {{"RANK", "HOST", "PID", "STATE", "COLLECTIVES"}};
  for (const Json& rank : At(all, "ranks")) {
    ranks.push_back({Text(At(rank, "rank")), Text(At(rank, "host")), Text(At(rank, "pid")),
                     RankState(rank), Collective(rank)});
    if (ranks.size() > kMostRows) break;
  }
  if (ranks.size() > 1) absl::StrAppend(&out, "\n", Align(ranks));
  const size_t left = std::max(At(all, "ranks").size(), kMostRows) - kMostRows;
  if (left > 0) absl::StrAppend(&out, "and ", Count(left, "more rank"), "; --json has all\n");
  return out;
}

}  // namespace dtrain::status
