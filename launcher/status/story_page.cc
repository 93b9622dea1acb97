// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "launcher/report/facts.h"
#include "launcher/status/tables.h"
#include "launcher/story/find.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;
// Of a page.
constexpr size_t kMostHosts = 16;
constexpr size_t kMostAttempts = 20;
constexpr size_t kLongText = 400;

Duration InSeconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

std::string WhenOf(const Json& seconds) {
  if (!seconds.is_number()) return "";
  return story::ShownTime(static_cast<int64_t>(seconds.get<double>() * 1e9));
}

std::string Words(const Json& list) {
  std::vector<std::string> words;
  for (const Json& word : list) words.push_back(Text(word, kLongText));
  return absl::StrJoin(words, " ");
}

// Before the command, as a shell takes them.
std::string VariablesOf(const Json& story) {
  const Json& variables = At(story, "flag_variables");
  std::string out;
  if (!variables.is_object()) return out;
  for (const auto& [name, value] : variables.items()) {
    absl::StrAppend(&out, Text(Json(name)), "=", Text(value, kLongText), " ");
  }
  return out;
}

std::string HolderOf(const Json& story) {
  const Json& holder = At(story, "held_by");
  if (holder.is_object()) {
    std::string text = absl::StrCat("a launcher, process ", Text(At(holder, "pid")), " on ",
                                    Text(At(holder, "host")));
    if (const std::string since = WhenOf(At(holder, "since_unix_seconds")); !since.empty()) {
      absl::StrAppend(&text, ", since ", since);
    }
    return absl::StrCat(text, ", generation ", Text(At(holder, "generation")));
  }
  if (At(story, "state") != Json("unattended")) return "";
  const std::string since = WhenOf(At(story, "unattended_since_unix_seconds"));
  const std::string id = Text(At(story, "id"));
  return absl::StrCat("nobody", since.empty() ? "" : absl::StrCat(", since ", since),
                      ": dtrain attach ", id, " and dtrain wait ", id, " start a new launcher");
}

std::string SupervisorRow(const Json& story) {
  if (!At(story, "held_by").is_object() && !At(story, "supervisor").is_object()) return "";
  std::string text = absl::StrCat(SupervisorOf(story), RestartsOf(story));
  if (!At(story, "supervisor").is_object()) {
    absl::StrAppend(&text, "; if the launcher is killed, dtrain attach ", Text(At(story, "id")),
                    " continues the job");
  }
  return text;
}

std::string HostsOf(const Json& story) {
  std::vector<std::string> hosts;
  for (const Json& host : At(story, "hosts")) {
    if (hosts.size() == kMostHosts) {
      hosts.push_back("...");
      break;
    }
    hosts.push_back(Text(host));
  }
  const Json& world = At(story, "world_size");
  if (!world.is_number_unsigned()) return absl::StrJoin(hosts, ", ");
  return absl::StrCat(absl::StrJoin(hosts, ", "), hosts.empty() ? "" : ": ",
                      Count(world.get<size_t>(), "rank"));
}

std::string AttemptsOf(const Json& story) {
  const Json& attempts = At(story, "attempts");
  if (!attempts.is_array() || attempts.empty()) return "";
  std::string out = "\nattempts that have ended:\n";
  const size_t first = attempts.size() > kMostAttempts ? attempts.size() - kMostAttempts : 0;
  if (first > 0) absl::StrAppend(&out, "  ... ", first, " before these\n");
  for (size_t i = first; i < attempts.size(); ++i) {
    const Json& one = attempts[i];
    const std::string cause = Text(At(one, "cause"), kLongText);
    absl::StrAppend(&out, "  attempt ", Text(At(one, "attempt")));
    if (At(one, "ran_s").is_number()) {
      const double ran = Number(At(one, "ran_s"));
      absl::StrAppend(&out, ", ran ", ran < 60 ? report::Seconds(InSeconds(ran)) : Age(ran));
    }
    absl::StrAppend(&out, ": ", cause.empty() ? "succeeded" : cause, "\n");
  }
  return out;
}

}  // namespace

std::string StoryPage(const Json& story) {
  const std::string name = Text(At(story, "name"));
  std::string out = absl::StrCat(Text(At(story, "id")),
                                 name.empty() || name == "-" ? "" : absl::StrCat(" (", name, ")"),
                                 ": ", Text(At(story, "state")));
  const bool ended = At(story, "state") == Json("ended");
  const Json& code = At(story, "exit_code");
  if (ended) {
    absl::StrAppend(&out, code.is_number_integer() ? absl::StrCat(", exit code ", Text(code))
                                                   : ", exit code not known");
  } else if (At(story, "attempt").is_number_unsigned() && At(story, "attempt") != Json(0u)) {
    absl::StrAppend(&out, ", attempt ", Text(At(story, "attempt")));
  }
  absl::StrAppend(&out, "\n", VariablesOf(story), Words(At(story, "command")), "\n\n");
  std::vector<Row> rows;
  const auto add = [&rows](const char* title, std::string text) {
    if (!text.empty() && text != "-") rows.push_back({title, std::move(text)});
  };
  add("accepted", WhenOf(At(story, "accepted_unix_seconds")));
  add("ended", WhenOf(At(story, "ended_unix_seconds")));
  add("launched on", Text(At(story, "launched_on")));
  add("working directory", Text(At(story, "working_directory"), kLongText));
  add("hosts", HostsOf(story));
  add("controlled by", HolderOf(story));
  add("supervised by", SupervisorRow(story));
  if (const Json& stop = At(story, "stop"); stop.is_object()) {
    const std::string when = WhenOf(At(stop, "unix_seconds"));  // of one that has ended: not known
    add("stop asked by",
        absl::StrCat(Text(At(stop, "by"), kLongText), when.empty() ? "" : ", ", when));
  }
  if (At(story, "on_end_runs") == Json(true)) add("--on-end", "still runs");
  if (At(story, "keep") == Json(true)) {
    add("kept", absl::StrCat("until dtrain rm ", Text(At(story, "id"))));
  }
  add("folder", Text(At(story, "folder"), kLongText));
  absl::StrAppend(&out, Align(rows), AttemptsOf(story));
  for (const Json& problem : At(story, "problems")) {
    absl::StrAppend(&out, "problem: ", Text(problem, kLongText), "\n");
  }
  // Made by us, and escaped when it was made.
  if (const Json& report = At(story, "report"); report.is_string() && report != Json("")) {
    absl::StrAppend(&out, "\n", absl::StripSuffix(report.get<std::string>(), "\n"), "\n");
  }
  return out;
}

}  // namespace dtrain::status
