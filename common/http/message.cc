// SPDX-License-Identifier: Apache-2.0
#include "common/http/message.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace dtrain::http {
namespace {

constexpr char kOpenMetrics[] = "application/openmetrics-text";
constexpr uint64_t kDefaultPage = uint64_t{64} << 10;
constexpr uint64_t kLargestPage = uint64_t{4} << 20;

std::string Get(const Target& target, const std::string& name, const std::string& fallback) {
  auto it = target.query.find(name);
  return it == target.query.end() ? fallback : it->second;
}

}  // namespace

Response ErrorResponse(int status, absl::string_view message) {
  const nlohmann::json body = {{"error", std::string(message)}};
  Response response;
  response.status = status;
  // Bytes that are no UTF-8 become U+FFFD instead of an exception.
  response.body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return response;
}

Response JsonResponse(const nlohmann::ordered_json& json) {
  using Json = nlohmann::ordered_json;
  Response response;
  response.body = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return response;
}

Response CompactResponse(const nlohmann::ordered_json& json) {
  using Json = nlohmann::ordered_json;
  Response response;
  response.body = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return response;
}

bool WantsOpenMetrics(const Target& target) {
  return absl::StrContains(target.accept, kOpenMetrics);
}

Response MetricsResponse(std::string text, bool openmetrics) {
  Response response;
  response.content_type =
      absl::StrCat(openmetrics ? kOpenMetrics : "text/plain",
                   openmetrics ? "; version=1.0.0" : "; version=0.0.4", "; charset=utf-8");
  response.body = std::move(text);
  return response;
}

absl::StatusOr<std::optional<uint64_t>> Number(const Target& target, const std::string& name) {
  auto it = target.query.find(name);
  if (it == target.query.end()) return std::nullopt;
  uint64_t value = 0;
  if (!absl::SimpleAtoi(it->second, &value)) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is not a number"));
  }
  return value;
}

absl::StatusOr<bool> Flag(const Target& target, const std::string& name) {
  const std::string value = Get(target, name, "false");
  if (value == "true" || value == "false") return value == "true";
  return absl::InvalidArgumentError(absl::StrCat(name, " is neither true nor false"));
}

absl::StatusOr<LogQuery> ParseLogQuery(const Target& target) {
  const std::string stream = Get(target, "stream", "stdout");
  if (stream != "stdout" && stream != "stderr") {
    return absl::InvalidArgumentError("stream is neither stdout nor stderr");
  }
  const auto follow = Flag(target, "follow");
  if (!follow.ok()) return follow.status();
  const auto offset = Number(target, "offset");
  if (!offset.ok()) return offset.status();
  const auto limit = Number(target, "limit");
  if (!limit.ok()) return limit.status();
  LogQuery query;
  query.of_stderr = stream == "stderr";
  query.offset = *offset;
  query.limit = std::min(limit->value_or(kDefaultPage), kLargestPage);
  query.follow = *follow;
  return query;
}

}  // namespace dtrain::http
