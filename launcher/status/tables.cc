// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/tables.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "launcher/status/cells.h"

namespace dtrain::status {
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
