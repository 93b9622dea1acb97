// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
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

}  // namespace dtrain::status
