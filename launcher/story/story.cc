// SPDX-License-Identifier: Apache-2.0
#include "launcher/story/story.h"

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "launcher/detached/supervisor.h"
#include "launcher/report/write_result.h"
#include "launcher/story/find.h"
#include "launcher/story/masked.h"

namespace dtrain::story {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

double Seconds(int64_t unix_nanos) { return static_cast<double>(unix_nanos) / 1e9; }

Json HolderJson(const v1::Launcher& holder) {
  Json json = {{"host", holder.host()}, {"pid", holder.pid()}, {"generation", holder.generation()}};
  if (holder.unix_nanos() != 0) json["since_unix_seconds"] = Seconds(holder.unix_nanos());
  return json;
}

// Who starts its launcher again.
Json SupervisorJson(const detached::Supervision& by) {
  if (!by.IsThere()) return nullptr;
  Json json = {{"kind", by.unit.empty() ? "minder" : "systemd"}};
  if (by.unit.empty()) {
    json["pid"] = by.minder.pid();
  } else {
    json["unit"] = by.unit;
  }
  json["host"] = by.host;
  return json;
}

void AddSpec(const v1::Spec& spec, Json& json) {
  json["name"] = spec.name();
  json["command"] = ShownWordsOf(spec);
  if (spec.flag_variables_size() > 0) {
    Json& variables = json["flag_variables"] = Json::object();
    for (const v1::EnvVar& variable : spec.flag_variables()) {
      variables[variable.name()] = MaskedValue(variable.name(), variable.value());
    }
  }
  json["working_directory"] = spec.working_directory();
  json["user"] = spec.user();
  json["launched_on"] = spec.accepted_by().host();
  json["accepted_unix_seconds"] = Seconds(spec.accepted_by().unix_nanos());
  if (!spec.key().empty()) json["key"] = spec.key();
  if (spec.keep()) json["keep"] = true;
  json["build"] = spec.build();
  if (spec.foreground()) json["foreground"] = true;
}

void AddJournal(const v1::JournalState& state, Json& json) {
  if (state.has_attempt()) {
    json["attempt"] = state.attempt().attempt();
    json["hosts"] =
        std::vector<std::string>(state.attempt().hosts().begin(), state.attempt().hosts().end());
    const uint32_t world =
        state.has_runs() ? state.runs().world_size() : state.attempt().world_size();
    if (world != 0) json["world_size"] = world;
  }
  Json attempts = Json::array();
  for (const v1::RestartDecided& restart : state.restarts()) {
    attempts.push_back({{"attempt", restart.attempt()},
                        {"cause", restart.cause()},
                        {"restart_counts", restart.counts()}});
  }
  json["attempts"] = std::move(attempts);
  if (state.has_stop()) {
    json["stop"] = {{"by", state.stop().by()},
                    {"unix_seconds", Seconds(state.stop().unix_nanos())}};
  }
  if (state.has_time_limit()) json["time_limit_reached"] = true;
  if (state.hooks_begun() > 0) json["on_end_runs"] = !state.has_hook();
  if (state.has_verdict()) {
    json["exit_code"] = state.verdict().exit_code();
    if (!state.verdict().message().empty()) json["message"] = state.verdict().message();
  }
}

void AddSummary(const std::string& text, Json& json) {
  const Json summary = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object()) {
    json["problems"].push_back("summary.json is no JSON object: how the job ended is not known");
    return;
  }
  for (const char* key : {"world_size", "attempts", "verdict"}) {
    if (summary.contains(key)) json[key] = summary[key];
  }
  // Only `dtrain stop` ends a detached job by a signal. The file may have been changed by hand.
  if (const auto verdict = summary.find("verdict");
      verdict != summary.end() && verdict->is_object()) {
    const auto kind = verdict->find("kind");
    const bool detached = !json.contains("foreground");
    if (detached && kind != verdict->end() && *kind == "signal") json["stop"] = {{"by", "SIGTERM"}};
  }
  Json hosts = Json::array();
  if (const auto nodes = summary.find("nodes"); nodes != summary.end() && nodes->is_array()) {
    for (const Json& node : *nodes) {
      const auto host = node.is_object() ? node.find("host") : node.end();
      if (node.is_object() && host != node.end() && host->is_string()) hosts.push_back(*host);
    }
  }
  if (!hosts.empty()) json["hosts"] = std::move(hosts);
  json["report"] = report::ReportOf(text);
}

std::optional<absl::Time> Modified(const std::string& path) {
  std::error_code error;
  const auto when = std::chrono::file_clock::to_sys(fs::last_write_time(path, error));
  if (error) return std::nullopt;
  return absl::FromChrono(std::chrono::time_point_cast<std::chrono::microseconds>(when));
}

}  // namespace

absl::string_view PhaseName(v1::JournalState::Phase phase) {
  switch (phase) {
    case v1::JournalState::PHASE_NEW:
    case v1::JournalState::PHASE_ACCEPTED:
      return "accepted";
    case v1::JournalState::PHASE_BEGUN:
      return "starting";
    case v1::JournalState::PHASE_RUNS:
      return "running";
    case v1::JournalState::PHASE_RESTARTING:
      return "restarting";
    case v1::JournalState::PHASE_CONCLUDED:
      return "ending";
    case v1::JournalState::PHASE_ENDED:
      return "ended";
    default:
      return "unknown";
  }
}

std::vector<std::string> WordsOf(const v1::Spec& spec) {
  std::vector<std::string> words(spec.argv().begin(), spec.argv().end());
  if (!words.empty() && fs::path(words[0]).filename() == "dtrain") words.erase(words.begin());
  return words;
}

std::vector<std::string> ShownWordsOf(const v1::Spec& spec) { return MaskedWords(WordsOf(spec)); }

std::optional<absl::Time> LastSign(const detached::JobFolder& job) {
  std::optional<absl::Time> last;
  for (const char* name : {"journal", "lock", "launcher.log"}) {
    const auto when = Modified(absl::StrCat(job.path(), "/", name));
    if (when && (!last || *when > *last)) last = when;
  }
  return last;
}

std::string Describe(const v1::Launcher& launcher) {
  std::vector<std::string> parts = {launcher.pid() == 0 ? "a launcher"
                                                        : absl::StrCat("process ", launcher.pid())};
  if (!launcher.host().empty()) absl::StrAppend(&parts[0], " on ", Escape(launcher.host()));
  if (launcher.unix_nanos() != 0) {
    parts.push_back(absl::StrCat("since ", ShownTime(launcher.unix_nanos())));
  }
  if (launcher.generation() != 0) {
    parts.push_back(absl::StrCat("generation ", launcher.generation()));
  }
  return absl::StrJoin(parts, ", ");
}

absl::StatusOr<Json> Tell(const detached::JobFolder& job) {
  if (absl::Status there = CheckThere(job); !there.ok()) return there;
  Json json = {{"id", job.id()}, {"name", ""}, {"state", "unknown"}};
  Json problems = Json::array();
  json["problems"] = problems;
  const auto spec = job.ReadSpec();
  if (spec.ok()) {
    AddSpec(*spec, json);
  } else {
    json["problems"].push_back(std::string(spec.status().message()));
  }
  const bool ended = job.HasSummary();
  const auto holder = job.Holder();
  const auto journal = job.ReadJournal();
  if (journal.ok()) {
    AddJournal(journal->state, json);
    json["state"] = std::string(PhaseName(journal->state.phase()));
  } else if (!ended || !absl::IsNotFound(journal.status())) {
    json["problems"].push_back(std::string(journal.status().message()));
  }
  json["held_by"] = nullptr;
  if (!ended && holder.ok() && *holder) json["held_by"] = HolderJson(**holder);
  const detached::Supervision supervision = detached::SupervisionOf(job);
  json["supervisor"] = SupervisorJson(supervision);
  json["launcher_restarts"] = supervision.restarts;
  if (!ended && holder.ok() && !*holder) {
    json["state"] = "unattended";
    if (const auto last = LastSign(job)) {
      json["unattended_since_unix_seconds"] = Seconds(absl::ToUnixNanos(*last));
    }
  }
  if (ended) {
    json["state"] = "ended";
    const auto entry = job.Entry();
    if (entry.ok()) {
      json["ended_unix_seconds"] = Seconds(entry->ended_unix_nanos());
      if (entry->exit_code() >= 0) json["exit_code"] = entry->exit_code();
      json["bytes"] = entry->bytes();
    }
    const auto summary = job.ReadSummary();
    if (summary.ok()) {
      AddSummary(*summary, json);
    } else {
      json["problems"].push_back(std::string(summary.status().message()));
    }
  }
  json["folder"] = job.path();
  return json;
}

}  // namespace dtrain::story
