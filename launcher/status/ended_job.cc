// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/ended_job.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "launcher/detached/log_reader.h"
#include "launcher/detached/log_segments.h"
#include "launcher/report/failure_report.h"
#include "launcher/status/tables.h"
#include "launcher/story/output.h"
#include "launcher/story/story.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;

// Of a file that its owner may have changed.
constexpr size_t kMostRanksShown = 100'000;
constexpr size_t kFailuresShown = 100;

double NumberAt(const Json& json, const char* key) {
  const Json& value = At(json, key);
  return value.is_number() ? value.get<double>() : 0;
}
uint32_t IndexAt(const Json& json, const char* key) {
  const Json& value = At(json, key);
  return value.is_number_unsigned() ? value.get<uint32_t>() : 0;
}
bool IsTrueAt(const Json& json, const char* key) { return At(json, key) == Json(true); }
std::string TextAt(const Json& json, const char* key) {
  const Json& value = At(json, key);
  return value.is_string() ? value.get<std::string>() : "";
}
const Json& ListAt(const Json& json, const char* key) {
  static const Json kNone = Json::array();
  const Json& value = At(json, key);
  return value.is_array() ? value : kNone;
}

int CodeAt(const Json& json, const char* key) {
  const Json& value = At(json, key);
  return value.is_number_integer() ? static_cast<int>(value.get<int64_t>()) : 0;
}

v1::WorkerExit ExitAt(const Json& rank) {
  v1::WorkerExit exit;
  exit.set_signal(CodeAt(rank, "signal"));
  exit.set_exit_code(CodeAt(rank, "exit_code"));
  exit.set_aborted(!At(rank, "abort_code").is_null());
  exit.set_abort_code(CodeAt(rank, "abort_code"));
  exit.set_out_of_memory(IsTrueAt(rank, "out_of_memory"));
  const Json& limit = At(rank, "memory_limit_bytes");
  if (limit.is_number_unsigned()) exit.set_memory_limit_bytes(limit.get<uint64_t>());
  exit.set_core_dumped(IsTrueAt(rank, "core_dumped"));
  exit.set_told_to_stop(IsTrueAt(rank, "told_to_stop"));
  return exit;
}

double PhaseSeconds(const Json& summary) {
  double seconds = 0;
  for (const Json& phase : ListAt(summary, "phases")) seconds += NumberAt(phase, "seconds");
  return seconds;
}

// All that there is of a stream.
class FolderFeed : public http::Feed {
 public:
  FolderFeed(std::string folder, detached::LogStream stream, uint64_t offset, uint64_t end)
      : reader_(std::move(folder), stream, offset), end_(end) {}

  std::string Next(size_t limit) override {
    if (ended()) return "";
    auto text = reader_.Next(limit);
    // Removed meanwhile, or not to be read: the reader must not take it for all.
    broken_ = !text.ok() || text->empty();
    return broken_ ? "" : *std::move(text);
  }
  bool ended() const override { return broken_ || reader_.offset() >= end_; }
  bool broken() const override { return broken_; }
  void Notify(absl::AnyInvocable<void()> task) override { task(); }

 private:
  detached::LogReader reader_;
  const uint64_t end_;
  bool broken_ = false;
};

class LinesFeed : public http::Feed {
 public:
  explicit LinesFeed(std::string text) : text_(std::move(text)) {}
  std::string Next(size_t limit) override {
    std::string out = text_.substr(0, limit);
    text_.erase(0, out.size());
    return out;
  }
  bool ended() const override { return text_.empty(); }
  void Notify(absl::AnyInvocable<void()> task) override { task(); }

 private:
  std::string text_;
};

http::Response NoSuchPath() { return http::ErrorResponse(404, "no such path"); }

}  // namespace

absl::StatusOr<std::unique_ptr<EndedJob>> EndedJob::Read(const detached::JobFolder& folder) {
  const auto story = story::Tell(folder);
  if (!story.ok()) return story.status();
  if (At(*story, "state") != Json("ended")) {
    return absl::FailedPreconditionError(absl::StrCat("job ", folder.id(), " has not ended"));
  }
  const auto text = folder.ReadSummary();
  if (!text.ok()) return text.status();
  const Json summary = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object()) {
    return absl::DataLossError(absl::StrCat(
        folder.path(), "/summary.json is no JSON object: how the job ended is not known"));
  }
  return std::unique_ptr<EndedJob>(new EndedJob(folder, *story, summary));
}

EndedJob::EndedJob(const detached::JobFolder& folder, const Json& story, const Json& summary)
    : id_(folder.id()), columns_(0) {
  const std::vector<uint32_t> attempts = story::AttemptsOf(folder);
  logs_ = folder.LogFolder(attempts.empty() ? 0 : attempts.back());
  seconds_ =
      std::max(NumberAt(story, "ended_unix_seconds") - NumberAt(story, "accepted_unix_seconds"),
               PhaseSeconds(summary));
  TakeRanks(summary);
  view::RankCounts counts;
  for (const KeptRank& rank : ranks_) {
    if (rank.ended) counts.Ended(rank.exit);
  }
  view_ = {{"id", id_},
           {"state", "finished"},
           {"phase", "end"},
           {"command", At(story, "command")},
           {"launcher_pid", 0},
           {"begin_unix_s", NumberAt(story, "accepted_unix_seconds")},
           {"seconds", seconds_},
           {"world_size", ranks_.size()},
           {"ranks", counts.View()},
           {"nodes", ListAt(summary, "nodes").size()},
           {"waiting_for", Json::array()},
           {"phases", ListAt(summary, "phases")},
           {"warnings", ListAt(summary, "warnings")},
           {"from_folder", true}};
  TakeEvents(story, summary);
}

void EndedJob::TakeRanks(const Json& summary) {
  std::vector<view::NodeRow> nodes;
  for (const Json& node : ListAt(summary, "nodes")) {
    nodes.push_back({view::NodeLetter::kJoined, TextAt(node, "host")});
  }
  std::vector<view::RankRow> rows;
  for (const Json& rank : ListAt(summary, "ranks")) {
    if (rows.size() == kMostRanksShown || !rank.is_object()) break;
    const uint32_t node = std::min<uint32_t>(
        IndexAt(rank, "node"), nodes.empty() ? 0 : static_cast<uint32_t>(nodes.size()) - 1);
    ranks_.push_back({static_cast<uint32_t>(rows.size()), TextAt(rank, "host"),
                      IndexAt(rank, "pid"), IsTrueAt(rank, "ended"), ExitAt(rank),
                      NumberAt(rank, "seconds")});
    const view::RankFacts facts = ranks_.back().facts();
    rows.push_back({LetterOf(facts), facts.pid, ExitOf(facts), node});
  }
  columns_.Update(rows, nodes);
}

// When what happened is known only roughly: the summary has how long each part took.
void EndedJob::TakeEvents(const Json& story, const Json& summary) {
  const Json& attempts = ListAt(summary, "attempts");
  double at = 0;
  for (size_t i = 0; i + 1 < attempts.size(); ++i) {
    at += NumberAt(attempts[i], "ran_s");
    events_.Add(at, "restart", {{"text", TextAt(attempts[i], "cause")}});
    events_.Add(at, "attempt", {{"attempt", IndexAt(attempts[i + 1], "attempt")}});
  }
  at = std::max(seconds_ - PhaseSeconds(summary), at);
  double runs = at;
  for (const Json& phase : ListAt(summary, "phases")) {
    events_.Add(at, "phase", {{"text", TextAt(phase, "name")}});
    if (TextAt(phase, "name") == "run") runs = at;
    at += NumberAt(phase, "seconds");
  }
  for (const Json& warning : ListAt(summary, "warnings")) {
    events_.Add(runs, "warning", {{"text", warning.is_string() ? warning.get<std::string>() : ""}});
  }
  size_t told = 0;
  for (const KeptRank& rank : ranks_) {
    if (told == kFailuresShown) break;
    if (LetterOf(rank.facts()) != view::RankLetter::kFailed) continue;
    ++told;
    events_.Add(
        runs + rank.seconds, "rank",
        {{"rank", rank.rank}, {"host", rank.host}, {"text", report::DescribeEnd(rank.exit)}});
  }
  const double ago = static_cast<double>(absl::GetCurrentTimeNanos()) / 1e9 -
                     NumberAt(story, "ended_unix_seconds");
  events_.Add(seconds_, "ended",
              {{"exit_code", CodeAt(summary, "exit_code")},
               {"verdict", TextAt(At(summary, "verdict"), "kind")},
               {"report", TextAt(story, "report")},
               {"ago_s", std::max(ago, 0.0)},
               {"rank", At(At(summary, "verdict"), "first_failed_rank")},
               {"columns", AllColumns(0)}});
}

Json EndedJob::AllColumns(uint64_t since) const {
  Json json;
  for (const char* key : {"state", "phase", "seconds", "world_size", "ranks"})
    json[key] = view_[key];
  json.update(columns_.Since(since));
  return json;
}

http::Response EndedJob::Answer(const http::Target& target) const {
  const std::vector<std::string> parts = absl::StrSplit(target.path.substr(1), '/');
  if (parts == std::vector<std::string>{"healthz"}) return http::JsonResponse({{"status", "ok"}});
  if (parts.size() < 2 || parts[0] != "v1" || parts[1] != "jobs") return NoSuchPath();
  if (parts.size() == 2) return http::JsonResponse({{"jobs", Json::array({view_})}});
  if (parts[2] != id_) return http::ErrorResponse(404, "this is the page of another job");
  if (parts.size() == 3) return http::JsonResponse(view_);
  if (parts[3] == "ranks") return AnswerRank(parts, target);
  if (parts.size() != 4) return NoSuchPath();
  if (parts[3] == "columns") {
    const auto since = http::Number(target, "since");
    if (!since.ok()) return http::ErrorResponse(400, since.status().message());
    return http::CompactResponse(AllColumns(since->value_or(0)));
  }
  if (parts[3] == "events") return AnswerEvents(target);
  if (parts[3] == "series") {
    return http::CompactResponse({{"seconds", 10}, {"first", 0}, {"late", Json::array()}});
  }
  if (parts[3] == "gpus") {
    return http::CompactResponse({{"seconds", 10}, {"first", 0}, {"gpus", Json::array()}});
  }
  return NoSuchPath();
}

http::Response EndedJob::AnswerEvents(const http::Target& target) const {
  const auto since = http::Number(target, "since");
  if (!since.ok()) return http::ErrorResponse(400, since.status().message());
  const auto follow = http::Flag(target, "follow");
  if (!follow.ok()) return http::ErrorResponse(400, follow.status().message());
  if (!*follow) return http::CompactResponse({{"events", events_.Since(since->value_or(0))}});
  std::string text;
  uint64_t id = since->value_or(0);
  while (id < events_.last()) text += events_.Lines(id, size_t{1} << 20);
  http::Response response;
  response.content_type = "application/x-ndjson";
  response.feed = std::make_unique<LinesFeed>(std::move(text));
  return response;
}

http::Response EndedJob::AnswerRank(const std::vector<std::string>& parts,
                                    const http::Target& target) const {
  if (parts.size() == 4) {
    Json list = Json::array();
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) list.push_back(RankView(rank));
    return http::JsonResponse({{"ranks", std::move(list)}});
  }
  uint32_t rank = 0;
  if (!absl::SimpleAtoi(parts[4], &rank) || rank >= ranks_.size()) {
    return http::ErrorResponse(404, "the job has no such rank");
  }
  if (parts.size() == 5) return http::JsonResponse(RankView(rank));
  if (parts.size() == 6 && parts[5] == "log") return AnswerLog(rank, target);
  return NoSuchPath();
}

Json EndedJob::RankView(uint32_t number) const {
  Json json = view::RankView(ranks_[number].facts());
  std::vector<std::tuple<int64_t, bool, uint64_t>> runs;
  for (const bool of_stderr : {false, true}) {
    const detached::LogStream stream{Rank(number), of_stderr};
    const auto segments = detached::ListSegments(logs_, stream);
    uint64_t begin = 0;
    uint64_t end = 0;
    if (segments.ok() && segments->count(stream) > 0 && !segments->at(stream).empty()) {
      begin = segments->at(stream).front().begin;
      end = segments->at(stream).back().end();
    }
    json["log"][of_stderr ? "stderr" : "stdout"] = {{"begin", begin}, {"end", end}};
    if (begin == end) continue;
    for (const detached::LogSegment& segment : segments->at(stream)) {
      runs.push_back({segment.written_nanos, of_stderr, segment.end()});
    }
  }
  // As far as files tell: by when each was written last.
  std::sort(runs.begin(), runs.end());
  for (const auto& [written, of_stderr, end] : runs) {
    json["log"]["order"].push_back({of_stderr ? "stderr" : "stdout", end});
  }
  return json;
}

http::Response EndedJob::AnswerLog(uint32_t rank, const http::Target& target) const {
  const auto query = http::ParseLogQuery(target);
  if (!query.ok()) return http::ErrorResponse(400, query.status().message());
  const Json range = RankView(rank)["log"][query->of_stderr ? "stderr" : "stdout"];
  const auto begin = range["begin"].get<uint64_t>();
  const auto end = range["end"].get<uint64_t>();
  const uint64_t offset = query->offset.value_or(begin);
  const detached::LogStream stream{Rank(rank), query->of_stderr};
  http::Response response;
  response.content_type = "application/octet-stream";
  if (query->follow) {
    response.feed = std::make_unique<FolderFeed>(logs_, stream, offset, end);
    return response;
  }
  if (offset >= end) return response;
  auto text = detached::LogReader(logs_, stream, offset).Next(query->limit);
  if (!text.ok()) return http::ErrorResponse(500, text.status().message());
  response.body = *std::move(text);
  return response;
}

}  // namespace dtrain::status
