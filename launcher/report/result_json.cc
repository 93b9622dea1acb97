// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/result_json.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/safe_json.h"
#include "common/view/rank_view.h"
#include "launcher/job/outcome.h"
#include "launcher/report/attempts.h"
#include "launcher/report/code_json.h"
#include "launcher/report/failure_report.h"
#include "launcher/report/worker_error.h"

namespace dtrain::report {
namespace {

using Json = nlohmann::ordered_json;

double ToSeconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// Never empty.
std::string MessageOf(const JobFacts& facts) {
  const job::Verdict& verdict = facts.verdict;
  std::string text = verdict.message;
  if (verdict.kind == job::Verdict::Kind::kWorker) {
    text = CauseLine(facts);
    if (!verdict.message.empty() && !absl::StrContains(text, verdict.message)) {
      absl::StrAppend(&text, "\n", verdict.message);
    }
  }
  if (!text.empty()) return text;
  if (verdict.kind != job::Verdict::Kind::kSuccess) {
    return absl::StrCat("the job ended with exit code ", verdict.exit_code);
  }
  return facts.ranks.empty() ? "nothing was to be run"
         : facts.ranks.size() == 1
             ? "the rank ended with 0"
             : absl::StrCat("all ", facts.ranks.size(), " ranks ended with 0");
}

Json VerdictJson(const JobFacts& facts) {
  Json json;
  json["kind"] = VerdictName(facts.verdict.kind);
  json["message"] = MessageOf(facts);
  if (facts.verdict.kind == job::Verdict::Kind::kWorker) {
    json["first_failed_rank"] = facts.verdict.rank.value();
  }
  if (facts.verdict.signal != 0) json["signal"] = facts.verdict.signal;
  json["secondary_deaths"] = facts.secondary_deaths;
  return json;
}

Json PhasesJson(const JobFacts& facts, TimePoint now) {
  Json json = Json::array();
  for (const job::PhaseTime& phase : facts.phases) {
    if (phase.state == job::State::kFinished) continue;
    TimePoint end = phase.end == kNever ? now : phase.end;
    json.push_back({{"name", PhaseName(phase.state)}, {"seconds", ToSeconds(end - phase.begin)}});
  }
  return json;
}

// In the order in which they ended; the rest of the file is about the last.
Json AttemptsJson(const job::CampaignCore& campaign) {
  Json json = Json::array();
  for (const job::AttemptRecord& record : campaign.ended()) {
    json.push_back({{"attempt", record.attempt},
                    {"exit_code", record.exit_code},
                    {"cause", record.cause},
                    {"ran_s", ToSeconds(record.ran)},
                    {"restart_counts", record.counted}});
  }
  return json;
}

Json NodesJson(const JobFacts& facts) {
  Json json = Json::array();
  for (const job::NodeView& node : facts.nodes) {
    Json one = {{"host", node.host}, {"joined", node.joined}};
    if (node.joined && node.gone && !node.let_go) one["lost"] = true;
    if (node.joined) {
      one["hostname"] = node.inventory.hostname();
      one["machine"] = node.inventory.machine();
      one["kernel"] = node.inventory.kernel();
      one["cpus"] = node.inventory.allowed_cpus();
      one["gpus"] = node.inventory.gpus_size();
    }
    json.push_back(std::move(one));
  }
  return json;
}

Json ErrorJson(const WorkerError& error) {
  Json json = {{"message", error.message}};
  if (!error.traceback.empty()) json["traceback"] = error.traceback;
  if (error.unix_seconds != 0) json["unix_seconds"] = error.unix_seconds;
  return json;
}

Json RankJson(const JobFacts& facts, const job::RankEnd& end) {
  const v1::WorkerExit& exit = end.exit;
  Json json = {{"rank", end.rank.value()},
               {"node", end.node.value()},
               {"host", HostOf(facts, end.node)},
               {"ended", end.ended}};
  if (const v1::RankProgress& done = end.progress; done.operations() > 0) {
    json["collectives"] = {{"operations", done.operations()},
                           {"bytes", done.total_bytes()},
                           {"busy_s", static_cast<double>(done.busy_nanos()) / 1e9},
                           {"wait_s", static_cast<double>(done.wait_nanos()) / 1e9}};
  }
  if (!end.ended) return json;
  json["pid"] = exit.pid();
  view::AddExit(exit, json);
  if (exit.aborted()) json["abort_code"] = exit.abort_code();
  json["seconds"] = static_cast<double>(exit.monotonic_nanos()) / 1e9;
  json["told_to_stop"] = exit.told_to_stop();
  if (exit.out_of_memory()) {
    json["out_of_memory"] = true;
    if (exit.memory_limit_bytes() > 0) json["memory_limit_bytes"] = exit.memory_limit_bytes();
  }
  if (exit.core_dumped()) json["core_dumped"] = true;
  if (!exit.stderr_tail().empty()) json["stderr_tail"] = exit.stderr_tail();
  if (!exit.error_file().empty()) {
    const auto error = ParseErrorFile(exit.error_file());
    if (error.ok()) json["error"] = ErrorJson(*error);
  }
  return json;
}

}  // namespace

const char* VerdictName(job::Verdict::Kind kind) {
  switch (kind) {
    case job::Verdict::Kind::kNone:
      return "none";
    case job::Verdict::Kind::kSuccess:
      return "success";
    case job::Verdict::Kind::kWorker:
      return "worker";
    case job::Verdict::Kind::kNode:
      return "node";
    case job::Verdict::Kind::kRefused:
      return "refused";
    case job::Verdict::Kind::kSignal:
      return "signal";
    case job::Verdict::Kind::kTimeLimit:
      return "time_limit";
    case job::Verdict::Kind::kStartTimeout:
      return "start_timeout";
    case job::Verdict::Kind::kStalled:
      return "stalled";
    case job::Verdict::Kind::kLauncher:
      return "launcher";
  }
  return "none";
}

std::string ResultJson(const JobFacts& facts, absl::string_view job_id, TimePoint now) {
  Json json;
  json["schema"] = kResultSchema;
  json["job_id"] = std::string(job_id);
  json["exit_code"] = facts.verdict.exit_code;
  json["verdict"] = VerdictJson(facts);
  if (const std::string text = FailureReport(facts); !text.empty()) json["report"] = text;
  json["world_size"] = facts.ranks.size();
  json["warnings"] = facts.warnings;
  if (facts.code != nullptr) json["code"] = CodeJson(*facts.code);
  json["phases"] = PhasesJson(facts, now);
  json["nodes"] = NodesJson(facts);
  if (facts.campaign != nullptr) json["attempts"] = AttemptsJson(*facts.campaign);
  json["ranks"] = Json::array();
  for (const job::RankEnd& end : facts.ranks) json["ranks"].push_back(RankJson(facts, end));
  // Bytes that are no UTF-8 become U+FFFD instead of an exception.
  return SafeJson(json.dump(2, ' ', false, Json::error_handler_t::replace)) + "\n";
}

}  // namespace dtrain::report
