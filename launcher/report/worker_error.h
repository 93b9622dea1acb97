// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::report {

// Why a worker failed, in its own words: what PyTorch's `record` writes to TORCHELASTIC_ERROR_FILE.
// They are the worker's, any bytes: to be escaped where they are shown.
struct WorkerError {
  std::string message;       // "ValueError: boom", may have several lines
  std::string traceback;     // empty: none
  int64_t unix_seconds = 0;  // by its node's clock; 0: unknown
};

// All three forms that PyTorch writes, and what is missing in them left empty. Fails on what has
// no message: not JSON, cut short, another form. Pure.
absl::StatusOr<WorkerError> ParseErrorFile(absl::string_view text);

// Whether a report that shows this end of a worker's stderr needs no traceback: all of it is there,
// or its last ten lines are. Pure.
bool ShowsTraceback(absl::string_view stderr_tail, absl::string_view traceback);

}  // namespace dtrain::report
