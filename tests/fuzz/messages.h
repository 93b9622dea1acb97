// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace dtrain::fuzz {

// What a stranger does, from bytes: a byte that says what, two for the length of what follows.
class Script {
 public:
  explicit Script(absl::string_view bytes) : rest_(bytes) {}

  struct Step {
    uint8_t what = 0;
    absl::string_view message;
  };
  // False at the end.
  bool Next(Step& step) {
    constexpr size_t kHead = 3;
    if (rest_.size() < kHead) return false;
    step.what = static_cast<uint8_t>(rest_[0]);
    const size_t length = static_cast<uint8_t>(rest_[1]) | static_cast<uint8_t>(rest_[2]) << 8;
    step.message = rest_.substr(kHead, length);
    rest_.remove_prefix(kHead + step.message.size());
    return true;
  }

 private:
  absl::string_view rest_;
};

}  // namespace dtrain::fuzz
