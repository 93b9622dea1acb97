// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/tables.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/text.h"
#include "launcher/story/find.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;

const Json kNothing;

}  // namespace

const Json& At(const Json& json, const char* key) {
  if (!json.is_object()) return kNothing;
  auto it = json.find(key);
  return it == json.end() ? kNothing : *it;
}

std::string Text(const Json& json, size_t limit) {
  if (json.is_string()) return Escape(json.get<std::string>(), limit);
  if (json.is_number_integer()) return absl::StrCat(json.get<int64_t>());
  return "-";
}

double Number(const Json& json) { return json.is_number() ? json.get<double>() : 0; }

std::string Age(double seconds) {
  const auto s = static_cast<int64_t>(std::max(seconds, 0.0));
  if (s < 60) return absl::StrFormat("%d s", s);
  if (s < 3600) return absl::StrFormat("%d min %d s", s / 60, s % 60);
  if (s < 86400) return absl::StrFormat("%d h %d min", s / 3600, s / 60 % 60);
  return absl::StrFormat("%d d %d h", s / 86400, s / 3600 % 24);
}

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

namespace {

using Json = nlohmann::ordered_json;
// Of a page; a job may have thousands.
constexpr size_t kMostRows = 64;
constexpr size_t kCommandBytes = 60;

std::string Command(const Json& job) {
  std::vector<std::string> words;
  for (const Json& word : At(job, "command")) words.push_back(Text(word, kCommandBytes));
  const std::string all = absl::StrJoin(words, " ");
  return all.size() <= kCommandBytes ? all : absl::StrCat(all.substr(0, kCommandBytes), "...");
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

// "exit 0, 2026-11-27 01:02:03"
std::string EndOf(const Json& job) {
  const Json& when = At(job, "ended_unix_seconds");
  if (!when.is_number()) return "-";
  const Json& code = At(job, "exit_code");
  return absl::StrCat("exit ", code.is_number_integer() ? Text(code) : "?", ", ",
                      story::ShownTime(static_cast<int64_t>(when.get<double>() * 1e9)));
}

std::string SupervisorCell(const Json& job) {
  return At(job, "held_by").is_null() ? "-" : SupervisorOf(job);
}

std::string RankState(const Json& rank) {
  if (At(rank, "signal").is_number()) return absl::StrCat("killed by ", Text(At(rank, "signal")));
  if (At(rank, "exit_code").is_number()) return absl::StrCat("exit ", Text(At(rank, "exit_code")));
  const Json& sign = At(rank, "sign");
  if (!sign.is_object()) return Text(At(rank, "state"));
  const double ago = absl::ToUnixMicros(absl::Now()) / 1e6 - Number(At(sign, "unix_s"));
  return absl::StrCat(Text(At(sign, "what")), " ", Age(std::max(ago, 0.0)), " ago, not exited");
}

}  // namespace

std::string SupervisorOf(const Json& job) {
  const Json& by = At(job, "supervisor");
  if (At(by, "unit").is_string()) return absl::StrCat("systemd unit ", Text(At(by, "unit")));
  if (At(by, "pid").is_number()) return absl::StrCat("minder, process ", Text(At(by, "pid")));
  return "nobody";
}

std::string RestartsOf(const Json& job) {
  const Json& restarts = At(job, "launcher_restarts");
  if (!restarts.is_number_unsigned() || restarts == Json(0u)) return "";
  return absl::StrCat(", launcher restarts: ", restarts.get<size_t>());
}

std::string JobsTable(const Json& jobs, bool all) {
  if (jobs.empty()) return "no jobs\n";
  const auto any = [&jobs](const char* key) {
    return std::any_of(jobs.begin(), jobs.end(), [key](const Json& job) {
      const Json& value = At(job, key);
      return !value.is_null() && value != Json("");
    });
  };
  // Only detached jobs have these.
  const bool names = any("name");
  const bool ends = any("ended_unix_seconds");
  const bool supervisors = all && any("held_by");
  const auto row_of = [&](std::vector<std::string> cells, std::string name, std::string end,
                          std::string supervisor) {
    if (supervisors) cells.insert(cells.end() - 1, std::move(supervisor));
    if (ends) cells.insert(cells.end() - 1, std::move(end));
    if (names) cells.insert(cells.begin() + 1, name.empty() ? "-" : std::move(name));
    return cells;
  };
  std::vector<Row> rows = {
      row_of({"JOB", "PHASE", "RANKS", "NODES", "AGE", "COMMAND"}, "NAME", "ENDED", "SUPERVISOR")};
  for (const Json& job : jobs) {
    rows.push_back(row_of({Text(At(job, "id")), Text(At(job, "phase")), Ranks(job),
                           Text(At(job, "nodes")), Age(Number(At(job, "seconds"))), Command(job)},
                          Text(At(job, "name")), EndOf(job), SupervisorCell(job)));
  }
  return Align(rows);
}

std::string NodeJobsTable(const Json& jobs) {
  std::vector<Row> rows = {{"JOB", "OWNER", "STATE", "RANKS", "ON", "AGE", "COMMAND"}};
  for (const Json& job : jobs) {
    rows.push_back({Text(At(job, "id")), Text(At(job, "owner")), Text(At(job, "phase")), Ranks(job),
                    Text(At(job, "on")), Age(Number(At(job, "seconds"))),
                    At(job, "command").is_array() ? Command(job) : "-"});
  }
  return Align(rows);
}

std::string JobPage(const Json& all) {
  const Json& job = At(all, "job");
  std::string out =
      absl::StrCat(Text(At(job, "id")), ": ", Text(At(job, "phase")), ", ", Ranks(job), ", ",
                   Age(Number(At(job, "seconds"))), "\n", Command(job), "\n");
  if (const Json& holder = At(job, "held_by"); holder.is_object()) {
    const std::string name = Text(At(job, "name"));
    absl::StrAppend(&out, "detached",
                    name.empty() || name == "-" ? "" : absl::StrCat(", named ", name),
                    "; controlled by process ", Text(At(holder, "pid")), " on ",
                    Text(At(holder, "host")), ", generation ", Text(At(holder, "generation")),
                    "; supervised by ", SupervisorOf(job), RestartsOf(job), "\n");
  }
  for (const Json& node : At(job, "waiting_for")) {
    absl::StrAppend(&out, "waiting for ", Text(At(node, "host")), ": ", Text(At(node, "what"), 200),
                    "\n");
  }
  for (const Json& warning : At(job, "warnings")) {
    absl::StrAppend(&out, "warning: ", Text(warning, 300), "\n");
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
