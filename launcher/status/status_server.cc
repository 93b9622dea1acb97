// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/status_server.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/posix_error.h"
#include "common/os/fd.h"
#include "common/os/unique_fd.h"
#include "launcher/status/runtime_dir.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kOpenMetrics[] = "application/openmetrics-text";
constexpr size_t kTokenBytes = 32;
constexpr size_t kDefaultPage = size_t{64} << 10;
constexpr size_t kLargestPage = size_t{4} << 20;
constexpr Duration kLastReaders = std::chrono::seconds(1);

http::Response JsonResponse(const Json& json) {
  http::Response response;
  // Bytes that are no UTF-8 become U+FFFD instead of an exception.
  response.body = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return response;
}

http::Response NotFound() { return http::ErrorResponse(404, "there is nothing at this path"); }

// A parameter that is a number; `fallback` when it was not given.
absl::StatusOr<uint64_t> Number(const http::Target& target, const std::string& name,
                                uint64_t fallback) {
  auto it = target.query.find(name);
  if (it == target.query.end()) return fallback;
  uint64_t value = 0;
  if (!absl::SimpleAtoi(it->second, &value)) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is no number"));
  }
  return value;
}

absl::Status WriteToken(const std::string& path, const std::string& token) {
  os::UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return PosixError(errno, absl::StrCat("make ", path));
  const std::string line = token + "\n";
  if (write(fd.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return PosixError(errno, absl::StrCat("write ", path));
  }
  return absl::OkStatus();
}

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
  const size_t colon = where.rfind(':');
  std::string ip = colon == where.npos ? "127.0.0.1" : where.substr(0, colon);
  if (ip.size() > 2 && ip.front() == '[' && ip.back() == ']') ip = ip.substr(1, ip.size() - 2);
  uint32_t port = 0;
  if (!absl::SimpleAtoi(where.substr(colon == where.npos ? 0 : colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError("write it as PORT or 127.0.0.1:PORT");
  }
  absl::StatusOr<std::string> directory = RuntimeDirectory();
  if (!directory.ok()) return directory.status();
  const std::string token = os::RandomHex(kTokenBytes);
  const std::string file = absl::StrCat(*directory, "/", job_.id, ".token");
  auto server =
      http::Server::ListenTcp(loop_, ip, static_cast<uint16_t>(port), token,
                              [this](const http::Target& target) { return Answer(target); });
  if (!server.ok()) return server.status();
  absl::Status written = WriteToken(file, token);
  if (!written.ok()) return written;
  token_file_ = file;
  tcp_ = *std::move(server);
  return absl::StrCat("status on http://", tcp_->address(), "/v1/jobs/", job_.id, ", token in ",
                      file);
}

http::Response StatusServer::Answer(const http::Target& target) {
  std::vector<std::string> parts = absl::StrSplit(target.path.substr(1), '/');
  if (parts == std::vector<std::string>{"healthz"}) return JsonResponse({{"status", "ok"}});
  if (parts == std::vector<std::string>{"metrics"}) {
    http::Response response;
    const bool open = absl::StrContains(target.accept, kOpenMetrics);
    response.content_type =
        absl::StrCat(open ? kOpenMetrics : "text/plain",
                     open ? "; version=1.0.0" : "; version=0.0.4", "; charset=utf-8");
    response.body = MetricsText(job_, facts_(), loop_.Now(), open);
    return response;
  }
  if (parts.size() < 2 || parts[0] != "v1") return NotFound();
  if (parts[1] == "nodes" && parts.size() == 2) {
    return JsonResponse({{"nodes", NodesView(facts_())}});
  }
  if (parts[1] != "jobs") return NotFound();
  if (parts.size() == 2) {
    return JsonResponse({{"jobs", Json::array({JobView(job_, facts_(), loop_.Now())})}});
  }
  if (parts[2] != job_.id) return http::ErrorResponse(404, "this launcher has no such job");
  return AnswerJob(parts, target);
}

http::Response StatusServer::AnswerJob(const std::vector<std::string>& parts,
                                       const http::Target& target) {
  if (parts.size() == 3) return JsonResponse(JobView(job_, facts_(), loop_.Now()));
  if (parts[3] != "ranks") return NotFound();
  if (parts.size() == 4) return JsonResponse({{"ranks", RanksView(facts_(), pids_, logs_)}});
  uint32_t rank = 0;
  if (!absl::SimpleAtoi(parts[4], &rank) || rank >= facts_().ranks.size()) {
    return http::ErrorResponse(404, "the job has no such rank");
  }
  if (parts.size() == 5) return JsonResponse(RanksView(facts_(), pids_, logs_)[rank]);
  if (parts.size() == 6 && parts[5] == "log") return AnswerLog(rank, target);
  return NotFound();
}

http::Response StatusServer::AnswerLog(uint32_t rank, const http::Target& target) {
  auto get = [&](const std::string& name, const std::string& fallback) {
    auto it = target.query.find(name);
    return it == target.query.end() ? fallback : it->second;
  };
  const std::string stream = get("stream", "stdout");
  const std::string follow = get("follow", "false");
  if (stream != "stdout" && stream != "stderr") {
    return http::ErrorResponse(400, "stream is neither stdout nor stderr");
  }
  if (follow != "true" && follow != "false") {
    return http::ErrorResponse(400, "follow is neither true nor false");
  }
  const v1::StreamKind kind = stream == "stdout" ? v1::STREAM_KIND_STDOUT : v1::STREAM_KIND_STDERR;
  const LogTails::Range range = logs_.range(Rank(rank), kind);
  const auto offset = Number(target, "offset", range.begin);
  const auto limit = Number(target, "limit", kDefaultPage);
  if (!offset.ok()) return http::ErrorResponse(400, offset.status().message());
  if (!limit.ok()) return http::ErrorResponse(400, limit.status().message());
  http::Response response;
  response.content_type = "application/octet-stream";
  if (follow == "true") {
    response.feed = logs_.Follow(Rank(rank), kind, *offset);
    return response;
  }
  if (*offset < range.begin) {
    return http::ErrorResponse(410, absl::StrCat("kept are the bytes from ", range.begin, " on"));
  }
  response.body = logs_.Read(Rank(rank), kind, *offset, std::min(*limit, kLargestPage));
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
