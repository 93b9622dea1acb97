// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/job_view.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/view/node_metrics.h"
#include "common/view/rank_view.h"
#include "launcher/job/outcome.h"
#include "launcher/report/code_json.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kWaitingNamed = 8;
double ToSeconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

view::RankCounts CountRanks(const report::JobFacts& facts) {
  view::RankCounts counts;
  for (const job::RankEnd& rank : facts.ranks) {
    if (rank.ended) {
      counts.Ended(rank.exit);
    } else {
      ++(facts.state < job::State::kRunning ? counts.waiting : counts.running);
    }
  }
  return counts;
}

view::RankFacts FactsOf(const report::JobFacts& facts, const job::RankEnd& rank) {
  const auto node = rank.node.value();
  return {.rank = rank.rank.value(),
          .host = report::HostOf(facts, rank.node),
          .pid = rank.pid,
          .lost = node < facts.nodes.size() && facts.nodes[node].gone,
          .halted = rank.halted_at != kNever,
          .ended = rank.ended,
          .exit = rank.ended ? &rank.exit : nullptr,
          .progress = &rank.progress};
}

Json LogView(const LogTails& logs, Rank rank, v1::StreamKind stream) {
  const LogTails::Range range = logs.range(rank, stream);
  return {{"begin", range.begin}, {"end", range.end}};
}

bool IsPause(const report::JobFacts& facts) {
  return facts.campaign != nullptr && facts.campaign->state() == job::CampaignCore::State::kPause;
}

const char* StateOf(const report::JobFacts& facts) {
  return IsPause(facts) ? "restarting" : job::StateName(facts.state);
}

const char* PhaseOf(const report::JobFacts& facts) {
  return IsPause(facts) ? "restart" : report::PhaseName(facts.state);
}

// Of thousands of attempts nobody reads all in each answer.
constexpr size_t kAttemptsShown = 20;

Json RestartsView(const job::CampaignCore& campaign, TimePoint now) {
  Json json = {{"attempt", campaign.attempt()},
               {"restarts", campaign.counted()},
               {"max_restarts", campaign.options().max_restarts}};
  if (campaign.state() == job::CampaignCore::State::kPause) {
    json["next_in_s"] = std::max(ToSeconds(campaign.next_at() - now), 0.0);
  }
  json["ended"] = Json::array();
  const size_t skipped =
      campaign.ended().size() - std::min(campaign.ended().size(), kAttemptsShown);
  for (size_t i = skipped; i < campaign.ended().size(); ++i) {
    const job::AttemptRecord& record = campaign.ended()[i];
    json["ended"].push_back({{"attempt", record.attempt},
                             {"exit_code", record.exit_code},
                             {"cause", record.cause},
                             {"ran_s", ToSeconds(record.ran)}});
  }
  return json;
}

}  // namespace

Json JobView(const JobIdentity& job, const report::JobFacts& facts, TimePoint now) {
  Json json;
  json["id"] = job.id;
  json["state"] = StateOf(facts);
  json["phase"] = PhaseOf(facts);
  json["command"] = job.argv;
  json["launcher_pid"] = job.launcher_pid;
  json["begin_unix_s"] = static_cast<double>(job.begin_unix_nanos) / 1e9;
  json["seconds"] = ToSeconds(now - job.begin);
  json["world_size"] = facts.ranks.size();
  json["ranks"] = CountRanks(facts).View();
  json["nodes"] = facts.nodes.size();
  json["waiting_for"] = Json::array();
  for (const job::NodeView& node : facts.nodes) {
    if (!report::IsWaiting(facts.state, node)) continue;
    json["waiting_for"].push_back({{"host", node.host}, {"what", node.waiting_for}});
  }
  json["phases"] = Json::array();
  for (const job::PhaseTime& phase : facts.phases) {
    const TimePoint end = phase.end == kNever ? now : phase.end;
    json["phases"].push_back(
        {{"name", report::PhaseName(phase.state)}, {"seconds", ToSeconds(end - phase.begin)}});
  }
  if (facts.campaign != nullptr) json["restarts"] = RestartsView(*facts.campaign, now);
  if (facts.code != nullptr) json["code"] = report::CodeJson(*facts.code);
  json["warnings"] = facts.warnings;
  if (facts.disk != nullptr) json["warnings"].push_back(*facts.disk);
  return json;
}

Json RankView(const report::JobFacts& facts, Rank number, const LogTails& logs) {
  const job::RankEnd& rank = facts.ranks[number.value()];
  Json json = view::RankView(FactsOf(facts, rank));
  if (!rank.ended && rank.seen.sign != job::Sign::kNone) {
    json["sign"] = {{"what", rank.seen.sign == job::Sign::kException ? "traceback" : "crash"},
                    {"unix_s", static_cast<double>(rank.seen.unix_nanos) / 1e9}};
  }
  json["log"] = {{"stdout", LogView(logs, rank.rank, v1::STREAM_KIND_STDOUT)},
                 {"stderr", LogView(logs, rank.rank, v1::STREAM_KIND_STDERR)}};
  return json;
}

Json OrderView(const LogTails& logs, Rank rank) {
  Json json = Json::array();
  for (const LogTails::Run& run : logs.Order(rank)) {
    const char* name = run.stream == v1::STREAM_KIND_STDERR ? "stderr" : "stdout";
    if (!json.empty() && json.back()[0] == name) {
      json.back()[1] = run.end;  // the same stream, later
    } else {
      json.push_back({name, run.end});
    }
  }
  return json;
}

Json RanksView(const report::JobFacts& facts, const LogTails& logs) {
  Json list = Json::array();
  for (const job::RankEnd& rank : facts.ranks) list.push_back(RankView(facts, rank.rank, logs));
  return list;
}

Json NodesView(const report::JobFacts& facts) {
  std::vector<bool> has_ranks(facts.nodes.size(), false);
  for (const job::RankEnd& rank : facts.ranks) has_ranks[rank.node.value()] = true;
  Json list = Json::array();
  for (size_t i = 0; i < facts.nodes.size(); ++i) {
    const job::NodeView& node = facts.nodes[i];
    Json json = {{"host", node.host},
                 {"state", node.let_go && !has_ranks[i] ? "not used"
                           : node.gone                  ? "gone"
                           : node.suspect               ? "suspect"
                           : node.spare                 ? "spare"
                           : node.joined                ? "joined"
                                                        : "connecting"}};
    if (!node.joined && !node.waiting_for.empty()) json["waiting_for"] = node.waiting_for;
    if (node.joined) {
      const v1::Inventory& inventory = node.inventory;
      json["hostname"] = inventory.hostname();
      json["machine"] = inventory.machine();
      json["kernel"] = inventory.kernel();
      json["cpus"] = inventory.allowed_cpus();
      json["memory_bytes"] = inventory.memory_bytes();
      json["gpus"] = Json::array();
      for (const v1::Gpu& gpu : inventory.gpus()) {
        json["gpus"].push_back({{"index", gpu.index()},
                                {"uuid", gpu.uuid()},
                                {"name", gpu.name()},
                                {"memory_total_bytes", gpu.memory_total_bytes()},
                                {"memory_used_bytes", gpu.memory_used_bytes()}});
      }
    }
    list.push_back(std::move(json));
  }
  return list;
}

Json SummaryView(const JobIdentity& job, const report::JobFacts& facts, TimePoint now) {
  Json json = {{"state", StateOf(facts)},
               {"phase", PhaseOf(facts)},
               {"seconds", ToSeconds(now - job.begin)},
               {"world_size", facts.ranks.size()},
               {"ranks", CountRanks(facts).View()}};
  size_t more = 0;
  for (const job::NodeView& node : facts.nodes) {
    if (!report::IsWaiting(facts.state, node)) continue;
    if (json["waiting_for"].size() < kWaitingNamed) {
      json["waiting_for"].push_back({{"host", node.host}, {"what", node.waiting_for}});
    } else {
      ++more;
    }
  }
  if (more > 0) json["waiting_more"] = more;
  if (facts.campaign != nullptr) json["restarts"] = RestartsView(*facts.campaign, now);
  if (facts.code != nullptr) json["code"] = report::CodeJson(*facts.code);
  return json;
}

void UpdateColumns(const report::JobFacts& facts, view::Columns& columns) {
  std::vector<view::RankRow> ranks;
  ranks.reserve(facts.ranks.size());
  for (const job::RankEnd& rank : facts.ranks) {
    const view::RankFacts told = FactsOf(facts, rank);
    ranks.push_back({LetterOf(told), told.pid, ExitOf(told), rank.node.value()});
  }
  // At the end of the job nodes go one by one, with nothing left on them.
  std::vector<bool> is_lost(facts.nodes.size(), facts.state < job::State::kStopping);
  for (const job::RankEnd& rank : facts.ranks) {
    if (!rank.ended && rank.node.value() < is_lost.size()) is_lost[rank.node.value()] = true;
  }
  std::vector<view::NodeRow> nodes;
  nodes.reserve(facts.nodes.size());
  for (size_t i = 0; i < facts.nodes.size(); ++i) {
    const job::NodeView& node = facts.nodes[i];
    nodes.push_back({node.let_go                               ? view::NodeLetter::kLeft
                     : node.gone && (is_lost[i] || node.spare) ? view::NodeLetter::kLost
                     : node.suspect                            ? view::NodeLetter::kSilent
                     : node.joined                             ? view::NodeLetter::kJoined
                                                               : view::NodeLetter::kConnecting,
                     node.host});
  }
  columns.Update(ranks, nodes);
}

std::vector<std::optional<uint64_t>> WaitNanos(const report::JobFacts& facts) {
  std::vector<std::optional<uint64_t>> out(facts.ranks.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const v1::RankProgress& progress = facts.ranks[i].progress;
    if (progress.operations() > 0) out[i] = progress.wait_nanos();
  }
  return out;
}

std::string MetricsText(const JobIdentity& job, const report::JobFacts& facts, TimePoint now,
                        bool openmetrics) {
  std::string out;
  const std::string id = absl::StrCat("job=\"", view::Label(job.id), "\"");
  view::AddFamily(out, "dtrain_job_state", "gauge", "1 for the state that the job is in.");
  absl::StrAppend(&out, "dtrain_job_state{", id, ",state=\"", StateOf(facts), "\"} 1\n");
  view::AddFamily(out, "dtrain_job_age_seconds", "gauge", "Time since the launch.");
  absl::StrAppendFormat(&out, "dtrain_job_age_seconds{%s} %.3f\n", id, ToSeconds(now - job.begin));
  const view::RankCounts counts = CountRanks(facts);
  view::AddFamily(out, "dtrain_job_ranks", "gauge", "Ranks by state.");
  for (const auto& [state, n] : {std::pair<const char*, size_t>{"waiting", counts.waiting},
                                 {"running", counts.running},
                                 {"ended", counts.ended}}) {
    absl::StrAppend(&out, "dtrain_job_ranks{", id, ",state=\"", state, "\"} ", n, "\n");
  }
  view::AddFamily(out, "dtrain_job_nodes", "gauge", "Nodes that have joined and are connected.");
  size_t nodes = 0;
  for (const job::NodeView& node : facts.nodes) nodes += node.joined && !node.gone ? 1 : 0;
  absl::StrAppend(&out, "dtrain_job_nodes{", id, "} ", nodes, "\n");

  if (facts.campaign != nullptr) {
    view::AddFamily(out, absl::StrCat("dtrain_job_restarts", openmetrics ? "" : "_total"),
                    "counter", "Attempts after the first.");
    absl::StrAppend(&out, "dtrain_job_restarts_total{", id, "} ", facts.campaign->attempt(), "\n");
  }

  using Progress = v1::RankProgress;
  struct Family {
    const char* name;
    const char* help;
    double (*value)(const Progress&);
  };
  constexpr Family kFamilies[] = {
      {"dtrain_rank_collectives", "Collectives of libdtrain that a rank has completed.",
       [](const Progress& p) { return static_cast<double>(p.operations()); }},
      {"dtrain_rank_collective_bytes", "Bytes processed by them.",
       [](const Progress& p) { return static_cast<double>(p.total_bytes()); }},
      {"dtrain_rank_collective_busy_seconds", "Time spent in them.",
       [](const Progress& p) { return static_cast<double>(p.busy_nanos()) / 1e9; }},
      {"dtrain_rank_collective_wait_seconds", "Part of that time spent waiting for the last rank.",
       [](const Progress& p) { return static_cast<double>(p.wait_nanos()) / 1e9; }}};
  for (const Family& family : kFamilies) {
    view::AddFamily(out, absl::StrCat(family.name, openmetrics ? "" : "_total"), "counter",
                    family.help);
    for (const job::RankEnd& rank : facts.ranks) {
      if (rank.progress.operations() == 0) continue;
      absl::StrAppendFormat(&out, "%s_total{%s,rank=\"%d\",host=\"%s\"} %.17g\n", family.name, id,
                            rank.rank.value(), view::Label(report::HostOf(facts, rank.node)),
                            family.value(rank.progress));
    }
  }
  return openmetrics ? out + "# EOF\n" : out;
}

}  // namespace dtrain::status
