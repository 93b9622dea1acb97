// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace dtrain::output {

// Cuts a stream of bytes into lines. A line of kMaxLine bytes without an end is given out in pieces
// of that size, so that memory is bounded whatever a worker writes. Any bytes are allowed. Pure.
class LineSplitter {
 public:
  static constexpr size_t kMaxLine = 64 << 10;

  // `line` is without its newline; `ended` tells whether there was one. It points into the bytes
  // given or into this object, for the time of the call.
  using OnLine = absl::FunctionRef<void(absl::string_view line, bool ended)>;

  void Add(absl::string_view bytes, OnLine on_line);
  // The stream is over: gives out the line that has no end, if there is one.
  void Flush(OnLine on_line);
  // The line that has not ended, and how long it is.
  absl::string_view open() const { return pending_; }
  size_t pending() const { return pending_.size(); }
  std::string TakeOpen() { return std::exchange(pending_, {}); }

 private:
  std::string pending_;  // at most kMaxLine bytes, none of them a newline
};

}  // namespace dtrain::output
