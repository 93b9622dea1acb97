// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/status_server.h"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/page/page.h"
#include "launcher/status/runtime_dir.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;

constexpr Duration kLastReaders = std::chrono::seconds(1);
constexpr Duration kLastQuestions = std::chrono::milliseconds(400);
constexpr uint64_t kNanosOfMilli = 1'000'000;

http::Response NotFound() { return http::ErrorResponse(404, "no such path"); }

http::Response BadParameter(const absl::Status& why) {
  return http::ErrorResponse(400, why.message());
}

}  // namespace

StatusServer::StatusServer(loop::Loop& loop, JobIdentity job, ReadFacts facts)
    : loop_(loop),
      job_(std::move(job)),
      facts_(std::move(facts)),
      columns_(static_cast<uint64_t>(job_.begin_unix_nanos) / kNanosOfMilli),
      events_(job_.begin),
      event_feeds_(events_.log()),
      sampled_(job_.begin),
      sample_(loop),
      patience_(loop),
      questions_(loop) {
  SampleLater();
}

StatusServer::~StatusServer() {
  *alive_ = false;
  // Before the logs that their connections read.
  tcp_.reset();
  unix_.reset();
  if (!token_file_.empty()) unlink(token_file_.c_str());
}

absl::Status StatusServer::ListenUnix() {
  absl::StatusOr<std::string> directory = RuntimeDirectory();
  if (!directory.ok()) return directory.status();
  FindJobs(*directory);
  auto server =
      http::Server::ListenUnixForPosts(loop_, SocketPath(*directory, job_.id),
                                       [this](const http::Target& target, http::Reply reply) {
                                         if (target.is_post)
                                           return AnswerPost(target, std::move(reply));
                                         reply(Answer(target));
                                       });
  if (!server.ok()) return server.status();
  unix_ = *std::move(server);
  return absl::OkStatus();
}

absl::StatusOr<std::string> StatusServer::ListenTcp(const std::string& where) {
  const auto listening = http::ParseListening(where);
  if (!listening.ok()) return listening.status();
  absl::StatusOr<std::string> directory = RuntimeDirectory();
  if (!directory.ok()) return directory.status();
  const std::string file = absl::StrCat(*directory, "/", job_.id, ".token");
  const auto token = http::WriteToken(file);
  if (!token.ok()) return token.status();
  token_file_ = file;
  auto server =
      http::Server::ListenTcp(loop_, listening->ip, listening->port, *token,
                              [this](const http::Target& target) { return Answer(target); });
  if (!server.ok()) return server.status();
  tcp_ = *std::move(server);
  return absl::StrCat("status on http://", tcp_->address(), "/v1/jobs/", job_.id, ", token in ",
                      file);
}

http::Response PageResponse(page::Shows shows) {
  http::Response response;
  response.content_type = "text/html; charset=utf-8";
  response.body = page::Text(shows);
  response.policy = std::string(page::Policy());
  return response;
}

void StatusServer::AnswerPost(const http::Target& target, http::Reply reply) {
  if (target.path != absl::StrCat("/v1/jobs/", job_.id, "/detach")) {
    return reply(http::ErrorResponse(405, "only GET and HEAD are supported here"));
  }
  if (!detaching_.ask) return reply(http::ErrorResponse(409, "it is a detached job already"));
  detaching_.ask([this, alive = alive_, reply = std::move(reply)](absl::Status may) mutable {
    if (*alive) reply(Detach(may));
  });
}

http::Response StatusServer::Detach(const absl::Status& may) {
  http::Response response = http::JsonResponse({{"id", job_.id}});
  response.status = 202;
  // Another one has asked, too: he gets what he wants.
  if (is_detached_) return response;
  const absl::Status detached = may.ok() ? detaching_.detach() : may;
  if (!detached.ok()) return http::ErrorResponse(409, detached.message());
  is_detached_ = true;
  sample_.Cancel();
  // Readers that follow something may be there for as long as the job.
  const auto told = [this, alive = alive_] {
    if (!*alive || !detaching_.then) return;
    patience_.Cancel();
    loop_.Post(std::exchange(detaching_.then, nullptr));
  };
  patience_.After(kLastReaders, told);
  unix_->WhenIdle(told);
  return response;
}

http::Response StatusServer::Answer(const http::Target& target) {
  if (is_detached_) return http::ErrorResponse(503, "another launcher takes the job over");
  if (target.path == "/") return PageResponse(page::Shows::kJob);
  std::vector<std::string> parts = absl::StrSplit(target.path.substr(1), '/');
  if (parts == std::vector<std::string>{"healthz"}) return http::JsonResponse({{"status", "ok"}});
  if (parts == std::vector<std::string>{"metrics"}) {
    const bool open = http::WantsOpenMetrics(target);
    return http::MetricsResponse(MetricsText(job_, facts_(), loop_.Now(), open), open);
  }
  if (parts.size() < 2 || parts[0] != "v1") return NotFound();
  if (parts[1] == "nodes" && parts.size() == 2) {
    return http::JsonResponse({{"nodes", NodesView(facts_())}});
  }
  if (parts[1] != "jobs") return NotFound();
  if (parts.size() == 2) {
    return http::JsonResponse({{"jobs", Json::array({JobView(job_, facts_(), loop_.Now())})}});
  }
  if (parts[2] != job_.id) return http::ErrorResponse(404, "this launcher has no such job");
  return AnswerJob(parts, target);
}

http::Response StatusServer::AnswerJob(const std::vector<std::string>& parts,
                                       const http::Target& target) {
  if (parts.size() == 3) return http::JsonResponse(JobView(job_, facts_(), loop_.Now()));
  if (parts.size() == 4 && parts[3] == "columns") return AnswerColumns(target);
  if (parts.size() == 4 && parts[3] == "events") return AnswerEvents(target);
  if (parts.size() == 4 && parts[3] == "series") return AnswerSeries(target);
  if (parts.size() == 4 && parts[3] == "gpus") return AnswerGpus(target);
  if (parts.size() == 4 && parts[3] == "log") return AnswerLogs(target);
  if (parts[3] != "ranks") return NotFound();
  if (parts.size() == 4) return http::JsonResponse({{"ranks", RanksView(facts_(), logs_)}});
  uint32_t rank = 0;
  if (!absl::SimpleAtoi(parts[4], &rank) || rank >= facts_().ranks.size()) {
    return http::ErrorResponse(404, "the job has no such rank");
  }
  if (parts.size() == 5) {
    Json view = RankView(facts_(), Rank(rank), logs_);
    view["log"]["order"] = OrderView(logs_, Rank(rank));
    return http::JsonResponse(view);
  }
  if (parts.size() == 6 && parts[5] == "log") return AnswerLog(rank, target);
  return NotFound();
}

http::Response StatusServer::AnswerLog(uint32_t rank, const http::Target& target) {
  const auto query = http::ParseLogQuery(target);
  if (!query.ok()) return BadParameter(query.status());
  const v1::StreamKind kind = query->of_stderr ? v1::STREAM_KIND_STDERR : v1::STREAM_KIND_STDOUT;
  const LogTails::Range range = logs_.range(Rank(rank), kind);
  const uint64_t offset = query->offset.value_or(range.begin);
  http::Response response;
  response.content_type = "application/octet-stream";
  if (query->follow) {
    response.feed = logs_.Follow(Rank(rank), kind, offset);
    return response;
  }
  if (offset < range.begin) {
    return http::ErrorResponse(410, absl::StrCat("only bytes from ", range.begin, " on are kept"));
  }
  response.body = logs_.Read(Rank(rank), kind, offset, query->limit);
  return response;
}

// The output of all ranks, or some of it, in one answer.
http::Response StatusServer::AnswerLogs(const http::Target& target) {
  LogTails::Which which;
  const auto follow = http::Flag(target, "follow");
  if (!follow.ok()) return BadParameter(follow.status());
  which.follow = *follow;
  const auto rank = http::Number(target, "rank");
  if (!rank.ok()) return BadParameter(rank.status());
  if (*rank && **rank >= facts_().ranks.size()) {
    return http::ErrorResponse(404, "the job has no such rank");
  }
  if (*rank) which.rank = Rank(static_cast<uint32_t>(**rank));
  const auto query = http::ParseLogQuery(target);
  if (!query.ok()) return BadParameter(query.status());
  if (target.query.count("stream") != 0) {
    which.stream = query->of_stderr ? v1::STREAM_KIND_STDERR : v1::STREAM_KIND_STDOUT;
  }
  http::Response response;
  response.content_type = "application/octet-stream";
  response.feed = logs_.FollowAll(which);
  return response;
}

http::Response StatusServer::AnswerColumns(const http::Target& target) {
  const auto since = http::Number(target, "since");
  if (!since.ok()) return BadParameter(since.status());
  const report::JobFacts facts = facts_();
  UpdateColumns(facts, columns_);
  Json json = SummaryView(job_, facts, loop_.Now());
  json.update(columns_.Since(since->value_or(0)));
  return http::CompactResponse(json);
}

http::Response StatusServer::AnswerEvents(const http::Target& target) {
  const auto since = http::Number(target, "since");
  if (!since.ok()) return BadParameter(since.status());
  const auto follow = http::Flag(target, "follow");
  if (!follow.ok()) return BadParameter(follow.status());
  Observe(std::nullopt);
  if (!*follow) {
    return http::CompactResponse({{"events", events_.log().Since(since->value_or(0))}});
  }
  http::Response response;
  response.content_type = "application/x-ndjson";
  response.feed = event_feeds_.Follow(since->value_or(0));
  return response;
}

http::Response StatusServer::AnswerSeries(const http::Target& target) {
  const auto since = http::Number(target, "since");
  if (!since.ok()) return BadParameter(since.status());
  const auto most = http::Number(target, "most");
  if (!most.ok()) return BadParameter(most.status());
  return http::CompactResponse(
      lateness_.Since(since->value_or(0), most->value_or(view::Lateness::kMostBins)));
}

http::Response StatusServer::AnswerGpus(const http::Target& target) {
  const auto since = http::Number(target, "since");
  if (!since.ok()) return BadParameter(since.status());
  const auto most = http::Number(target, "most");
  if (!most.ok()) return BadParameter(most.status());
  return http::CompactResponse(
      gpus_.Since(since->value_or(0), most->value_or(view::GpuSeries::kMostBins)));
}

void StatusServer::AttemptBegins(uint32_t attempt) {
  if (attempt > 0) events_.AttemptBegins(attempt, loop_.Now());
}

void StatusServer::AttemptEnded(const std::string& cause) {
  events_.AttemptEnded(facts_(), cause, loop_.Now());
  event_feeds_.Wake();
}

void StatusServer::Observe(std::optional<NodeId> of) {
  events_.Observe(facts_(), of, loop_.Now());
  event_feeds_.Wake();
}

void StatusServer::RankEnded(Rank rank) {
  events_.RankEnded(facts_(), rank, loop_.Now());
  event_feeds_.Wake();
}

void StatusServer::SampleLater() {
  static_assert(view::GpuSeries::kBin == view::Lateness::kBin);
  sample_.After(view::Lateness::kBin, [this] {
    const TimePoint now = loop_.Now();
    lateness_.Sample(WaitNanos(facts_()), now - std::exchange(sampled_, now));
    gpus_.EndBin();
    SampleLater();
  });
}

void StatusServer::Finish(loop::Task done) {
  const report::JobFacts facts = facts_();
  UpdateColumns(facts, columns_);
  Json columns = SummaryView(job_, facts, loop_.Now());
  columns.update(columns_.Since(0));
  events_.JobEnded(facts, std::move(columns), loop_.Now());
  const bool is_seen = event_feeds_.any();
  event_feeds_.End();
  logs_.EndAll();
  done_ = std::move(done);
  patience_.After(kLastReaders, [this] {
    if (done_ != nullptr) std::exchange(done_, nullptr)();
  });
  // A page that has just learned whose fault it was asks for that rank's output.
  if (!is_seen) return CheckIdle();
  questions_.After(kLastQuestions, [this] { CheckIdle(); });
}

void StatusServer::CheckIdle() {
  int busy = 0;
  auto left = std::make_shared<int>(0);
  for (const auto* server : {&unix_, &tcp_}) busy += *server != nullptr ? 1 : 0;
  *left = busy;
  auto idle = [this, left, alive = alive_] {
    if (!*alive || --*left > 0) return;
    patience_.Cancel();
    if (done_ != nullptr) std::exchange(done_, nullptr)();
  };
  if (busy == 0) {
    *left = 1;
    return idle();
  }
  for (auto* server : {&unix_, &tcp_}) {
    if (*server != nullptr) (*server)->WhenIdle(idle);
  }
}

}  // namespace dtrain::status
