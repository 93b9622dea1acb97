// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::report {

// A complete event ("X") of Chrome's trace format.
struct TraceEvent {
  struct Transfer {
    uint64_t number;
    uint64_t bytes;
  };

  absl::string_view name;  // any bytes; what is no UTF-8 is replaced
  int64_t begin;           // ns since the launch
  int64_t duration;        // ns
  int pid;
  int tid;
  std::optional<Transfer> transfer = std::nullopt;  // shown with the event
  absl::string_view args = "";                      // else this JSON object is, or nothing
};

// Adds the event as JSON, times in microseconds to the nanosecond. There may be hundreds of
// thousands a second, on cores that the workers need, so there is no JSON document in between.
void AppendEvent(const TraceEvent& event, std::string& out);

}  // namespace dtrain::report
