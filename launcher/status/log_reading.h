// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "dtrain/v1/agent.pb.h"

namespace dtrain::status {

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
