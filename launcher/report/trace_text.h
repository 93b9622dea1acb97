// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::report {

// A complete event ("X") of Chrome's trace format. There may be hundreds of thousands a second, on
// cores that the workers need: there is no JSON document of each, and what many share is text
// already.
struct TraceEvent {
  struct Transfer {
    uint64_t number;
    uint64_t bytes;
  };

  absl::string_view name;                           // of QuotedName, or quoted by hand
  int64_t begin;                                    // ns since the launch
  int64_t duration;                                 // ns
  absl::string_view track;                          // of TrackText
  std::optional<Transfer> transfer = std::nullopt;  // shown with the event
  absl::string_view args = "";                      // else this JSON object is, or nothing
};

// Of any bytes; what is no UTF-8 is replaced.
std::string QuotedName(absl::string_view name);

// Where an event is shown.
std::string TrackText(int pid, int tid);

// The elements of a JSON array, one behind the other, until somebody has taken them. Its memory is
// used again.
class TraceText {
 public:
  // Times in microseconds, to the nanosecond.
  void Append(const TraceEvent& event);
  // Some other element, as JSON.
  void Append(absl::string_view json);

  absl::string_view text() const { return {memory_.data(), size_}; }
  // The next element stands behind these.
  void Clear() { size_ = 0; }

 private:
  // Where the next element begins, with room for its `bytes`.
  char* Begin(size_t bytes);

  std::string memory_;
  size_t size_ = 0;  // of the text
  bool first_ = true;
};

}  // namespace dtrain::report
