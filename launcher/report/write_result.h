// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dtrain::report {

// Whether a file for `flag` can likely be written: to be asked before the job starts. Fails with
// the flag, the path and the cause.
absl::Status CheckWritable(absl::string_view flag, const std::string& path);

// Writes the file whole or not at all: readers never see half of it. What is no regular file (a
// FIFO, /dev/stdout) is written to as it is; a FIFO nobody reads is an error, not a wait.
absl::Status WriteResult(const std::string& path, absl::string_view text);
// The same for any file that `flag` names.
absl::Status WriteWhole(absl::string_view flag, const std::string& path, absl::string_view text);

// FailureReport once more, from what ResultJson has written, for a terminal; empty after a success,
// and where it cannot be read. Pure.
std::string ReportOf(absl::string_view result_json);

}  // namespace dtrain::report
