// SPDX-License-Identifier: Apache-2.0
#include "launcher/history/tables.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/status/tables.h"
#include "launcher/story/find.h"

namespace dtrain::history {
namespace {

using Json = nlohmann::ordered_json;
constexpr size_t kCommandBytes = 80;

std::string CommandOf(const Json& job) {
  std::vector<std::string> words;
  for (const Json& word : status::At(job, "command")) {
    words.push_back(status::Text(word, kCommandBytes));
  }
  if (words.empty()) return "-";
  const std::string all = absl::StrJoin(words, " ");
  return all.size() <= kCommandBytes ? all : absl::StrCat(all.substr(0, kCommandBytes), "...");
}

std::string TimeOf(const Json& seconds) {
  if (!seconds.is_number()) return "-";
  return story::ShownTime(static_cast<int64_t>(seconds.get<double>() * 1e9));
}

std::string AgeOf(const Json& seconds) {
  return seconds.is_number() ? status::Age(seconds.get<double>()) : "-";
}

}  // namespace

std::string HistoryTable(const Json& jobs) {
  if (jobs.empty()) return "no job has ended\n";
  std::vector<status::Row> rows = {{"JOB", "NAME", "ENDED", "RAN FOR", "EXIT", "COMMAND"}};
  for (const Json& job : jobs) {
    const std::string name = status::Text(status::At(job, "name"));
    rows.push_back({status::Text(status::At(job, "id")), name.empty() ? "-" : name,
                    TimeOf(status::At(job, "ended_unix_seconds")),
                    AgeOf(status::At(job, "seconds")), status::Text(status::At(job, "exit_code")),
                    CommandOf(job)});
  }
  return status::Align(rows);
}

}  // namespace dtrain::history
