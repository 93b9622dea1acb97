// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtrain/v1/agent.pb.h"
#include "launcher/detached/log_segments.h"

namespace dtrain::status {

// What LogTails::FollowAll gives, in any pieces, cut into frames again. Pure.
class LogFrames {
 public:
  struct Frame {
    detached::LogStream stream;
    int64_t unix_nanos = 0;  // 0: not known
    absl::string_view bytes;
  };
  // False: `on_frame` has said so, or it is no such answer.
  bool Add(absl::string_view piece, absl::FunctionRef<bool(const Frame&)> on_frame);

 private:
  std::string rest_;
};

// One rank's output, read from its agent piece by piece: what to ask for, and what an answer means.
// An agent is not believed more than it must be. Pure.
class LogReading {
 public:
  // `request`: of whom and what. Not followed, it goes as far as the output did at the first
  // answer.
  LogReading(v1::ReadLogRequest request, bool follow)
      : request_(std::move(request)), follow_(follow) {}

  enum class Then { kAsk, kPause, kEnd };
  struct Step {
    std::string text;  // to show
    Then then = Then::kAsk;
  };
  const v1::ReadLogRequest& request() const { return request_; }
  // DATA_LOSS: it is no answer to request().
  absl::StatusOr<Step> OnPiece(v1::LogPiece piece);
  // Something was answered.
  bool begun() const { return begun_; }

 private:
  v1::ReadLogRequest request_;
  bool follow_;
  bool begun_ = false;
  uint64_t until_ = 0;  // when not followed
};

}  // namespace dtrain::status
