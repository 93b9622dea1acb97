// SPDX-License-Identifier: Apache-2.0
#include "agent/answers/node_answers.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "agent/answers/spool_feed.h"
#include "agent/auth/authorise.h"
#include "common/view/node_metrics.h"
#include "common/view/node_view.h"

namespace dtrain::answers {
namespace {

using Json = nlohmann::ordered_json;

http::Response Refusal(const absl::Status& status) {
  int code = 500;
  if (absl::IsPermissionDenied(status)) code = 403;
  if (absl::IsNotFound(status)) code = 404;
  if (absl::IsInvalidArgument(status)) code = 400;
  if (absl::IsFailedPrecondition(status)) code = 409;
  if (absl::IsResourceExhausted(status)) code = 429;
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) code = 503;
  return http::ErrorResponse(code, status.message());
}

}  // namespace

http::AsyncHandler NodeAnswers::HandlerFor(auth::Identity peer) {
  return [this, peer = std::move(peer)](const http::Target& target, http::Reply reply) {
    Answer(peer, target, std::move(reply));
  };
}

void NodeAnswers::Answer(const auth::Identity& peer, const http::Target& target,
                         http::Reply reply) {
  const absl::string_view route = auth::RouteOf("GET", target.path);
  if (route.empty()) return reply(http::ErrorResponse(404, "no such path"));
  if (route == "GET /healthz") return reply(http::JsonResponse({{"status", "ok"}}));
  if (route == "GET /v1/jobs") {
    return inquiries_.ListJobs(peer, route, [&](const auto& jobs) {
      if (!jobs.ok()) return reply(Refusal(jobs.status()));
      Json list = Json::array();
      for (const v1::JobOnNode& job : *jobs) {
        list.push_back(view::JobView(job, host_, absl::GetCurrentTimeNanos()));
      }
      reply(http::JsonResponse({{"jobs", std::move(list)}}));
    });
  }
  if (absl::StartsWith(route, "GET /v1/jobs/")) {
    return AnswerJob(peer, route, target, std::move(reply));
  }
  const bool open = http::WantsOpenMetrics(target);
  inquiries_.ReportNode(
      peer, route,
      [this, route, open, reply = std::move(reply)](absl::StatusOr<v1::NodeReport> report) mutable {
        if (!report.ok()) return reply(Refusal(report.status()));
        if (route == "GET /metrics") {
          return reply(http::MetricsResponse(view::NodeMetrics(*report, host_, open), open));
        }
        Json node = view::NodeView(*report, host_);
        if (route == "GET /v1/node") return reply(http::JsonResponse(node));
        reply(http::JsonResponse({{"nodes", Json::array({std::move(node)})}}));
      });
}

void NodeAnswers::AnswerJob(const auth::Identity& peer, absl::string_view route,
                            const http::Target& target, http::Reply reply) {
  const std::vector<std::string> parts = absl::StrSplit(target.path, '/');
  const auto owner = target.query.find("owner");
  inquiries_.DescribeJob(peer, route, parts[3],
                         owner != target.query.end() ? owner->second : std::string(),
                         [&](const absl::StatusOr<v1::JobOnNode>& job) {
                           if (!job.ok()) return reply(Refusal(job.status()));
                           AnswerOf(*job, parts, peer, route, target, std::move(reply));
                         });
}

void NodeAnswers::AnswerOf(const v1::JobOnNode& job, const std::vector<std::string>& parts,
                           const auth::Identity& peer, absl::string_view route,
                           const http::Target& target, http::Reply reply) {
  if (parts.size() == 4) {
    return reply(http::JsonResponse(view::JobView(job, host_, absl::GetCurrentTimeNanos())));
  }
  if (parts.size() == 5) {
    Json list = Json::array();
    for (const v1::RankOnNode& rank : job.ranks()) list.push_back(view::RankView(rank, host_));
    return reply(http::JsonResponse({{"ranks", std::move(list)}}));
  }
  uint32_t number = 0;
  const auto is_it = [&](const v1::RankOnNode& rank) { return rank.rank() == number; };
  const bool is_number = absl::SimpleAtoi(parts[5], &number);
  const auto rank = std::find_if(job.ranks().begin(), job.ranks().end(), is_it);
  if (!is_number || rank == job.ranks().end()) {
    return reply(http::ErrorResponse(404, "the job has no such rank on this node"));
  }
  if (parts.size() == 6) return reply(http::JsonResponse(view::RankView(*rank, host_)));
  AnswerLog(peer, route, job, number, target, std::move(reply));
}

void NodeAnswers::AnswerLog(const auth::Identity& peer, absl::string_view route,
                            const v1::JobOnNode& job, uint32_t rank, const http::Target& target,
                            http::Reply reply) {
  const auto query = http::ParseLogQuery(target);
  if (!query.ok()) return reply(Refusal(query.status()));
  v1::ReadLogRequest request;
  request.set_job_id(job.job_id());
  request.set_attempt(job.attempt());
  request.set_owner(job.owner());
  request.set_rank(rank);
  request.set_stream(query->of_stderr ? v1::STREAM_KIND_STDERR : v1::STREAM_KIND_STDOUT);
  request.set_offset(query->offset.value_or(0));
  http::Response response;
  response.content_type = "application/octet-stream";
  if (query->follow) {
    auto feed = SpoolFeed::Open(inquiries_, peer, route, request);
    if (!feed.ok()) return reply(Refusal(feed.status()));
    response.feed = *std::move(feed);
    return reply(std::move(response));
  }
  request.set_limit(static_cast<uint32_t>(query->limit));
  inquiries_.ReadLog(
      peer, route, request,
      [response = std::move(response), offset = query->offset,
       reply = std::move(reply)](absl::StatusOr<v1::LogPiece> piece) mutable {
        if (!piece.ok()) return reply(Refusal(piece.status()));
        if (offset && piece->offset() > *offset) {
          return reply(http::ErrorResponse(
              410, absl::StrCat("only bytes from ", piece->offset(), " on are kept")));
        }
        response.body = std::move(*piece->mutable_data());
        reply(std::move(response));
      });
}

}  // namespace dtrain::answers
