// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/status_server.h"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/status/runtime_dir.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;

constexpr Duration kLastReaders = std::chrono::seconds(1);

http::Response NotFound() { return http::ErrorResponse(404, "no such path"); }

}  // namespace

StatusServer::StatusServer(loop::Loop& loop, JobIdentity job, ReadFacts facts)
    : loop_(loop), job_(std::move(job)), facts_(std::move(facts)), patience_(loop) {}

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
      http::Server::ListenUnix(loop_, SocketPath(*directory, job_.id),
                               [this](const http::Target& target) { return Answer(target); });
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

http::Response StatusServer::Answer(const http::Target& target) {
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
  if (parts[3] != "ranks") return NotFound();
  if (parts.size() == 4) return http::JsonResponse({{"ranks", RanksView(facts_(), pids_, logs_)}});
  uint32_t rank = 0;
  if (!absl::SimpleAtoi(parts[4], &rank) || rank >= facts_().ranks.size()) {
    return http::ErrorResponse(404, "the job has no such rank");
  }
  if (parts.size() == 5) return http::JsonResponse(RanksView(facts_(), pids_, logs_)[rank]);
  if (parts.size() == 6 && parts[5] == "log") return AnswerLog(rank, target);
  return NotFound();
}

http::Response StatusServer::AnswerLog(uint32_t rank, const http::Target& target) {
  const auto query = http::ParseLogQuery(target);
  if (!query.ok()) return http::ErrorResponse(400, query.status().message());
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

void StatusServer::Finish(loop::Task done) {
  logs_.EndAll();
  done_ = std::move(done);
  patience_.After(kLastReaders, [this] {
    if (done_ != nullptr) std::exchange(done_, nullptr)();
  });
  CheckIdle();
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
