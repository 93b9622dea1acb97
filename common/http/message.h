// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::http {

// What a GET asks for; path and query are decoded.
struct Target {
  std::string path;  // begins with a slash; has no "." or ".." segment and no control byte
  std::map<std::string, std::string> query;
  std::string accept;  // the header, as it came
  std::string text;    // as it came
  bool is_post = false;
};

// Fails on anything that is no plain path with a query: a bad escape, a NUL, a segment that climbs,
// a name given twice.
absl::StatusOr<Target> ParseTarget(absl::string_view text);

// A body that grows while it is sent. Loop thread.
class Feed {
 public:
  virtual ~Feed() = default;
  // Up to `limit` bytes that were not given yet; empty when there are none now.
  virtual std::string Next(size_t limit) = 0;
  // Nothing more will come.
  virtual bool ended() const = 0;
  // Nothing more will come, but not because that was all: the client must not take it for that.
  virtual bool broken() const { return false; }
  // Calls `task` once, when there is more or it has ended; a later call replaces it.
  virtual void Notify(absl::AnyInvocable<void()> task) = 0;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::unique_ptr<Feed> feed;  // set: the body, until it ends
  // What a browser may do with it (Content-Security-Policy). Of answers that are no pages: nothing.
  std::string policy = "default-src 'none'; frame-ancestors 'none'";
};

// {"error": "..."} with this status.
Response ErrorResponse(int status, absl::string_view message);
// Bytes in it that are no UTF-8 become U+FFFD.
Response JsonResponse(const nlohmann::ordered_json& json);
// Without spaces and line ends: for programs that ask often.
Response CompactResponse(const nlohmann::ordered_json& json);

// Whether the client would rather have metrics as OpenMetrics 1.0 than in Prometheus' older format.
bool WantsOpenMetrics(const Target& target);
Response MetricsResponse(std::string text, bool openmetrics);

// A parameter that is a number; none: it is not given. INVALID_ARGUMENT if it is something else.
absl::StatusOr<std::optional<uint64_t>> Number(const Target& target, const std::string& name);
// Likewise of one that is "true" or "false" (the default).
absl::StatusOr<bool> Flag(const Target& target, const std::string& name);

// What of an output stream is asked for.
struct LogQuery {
  bool of_stderr = false;
  std::optional<uint64_t> offset;  // none: from the first byte that is kept
  uint64_t limit = 0;
  bool follow = false;
};
// INVALID_ARGUMENT with the parameter that is wrong.
absl::StatusOr<LogQuery> ParseLogQuery(const Target& target);

using Handler = absl::AnyInvocable<Response(const Target&)>;
// One that may answer later. Each reply is called once, on the loop, and may outlive the client.
using Reply = absl::AnyInvocable<void(Response)>;
using AsyncHandler = absl::AnyInvocable<void(const Target&, Reply)>;

}  // namespace dtrain::http
