// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::transport {

// What of a remote stderr is kept, whatever a command there writes.
inline constexpr size_t kStderrKept = 64 << 10;

// The last bytes of a stream, in flat memory.
class Tail {
 public:
  explicit Tail(size_t limit = kStderrKept) : limit_(limit) {}
  void Add(absl::string_view bytes) {
    if (bytes.size() > limit_) bytes.remove_prefix(bytes.size() - limit_);
    text_.append(bytes.data(), bytes.size());
    // Cut when twice full, so that each byte moves at most once.
    if (text_.size() > 2 * limit_) text_.erase(0, text_.size() - limit_);
  }
  absl::string_view text() const {
    absl::string_view all = text_;
    return all.size() > limit_ ? all.substr(all.size() - limit_) : all;
  }

 private:
  const size_t limit_;
  std::string text_;
};

}  // namespace dtrain::transport
