// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "launcher/report/facts.h"

namespace dtrain::report {

// The version of the document's form; fields may be added without a new one.
inline constexpr int kResultSchema = 1;

// "success", "worker", "node" ...
const char* VerdictName(job::Verdict::Kind kind);

// How the job went, as --result-json writes it (docs/output.md lists the fields). Valid UTF-8
// whatever the workers wrote. Pure.
std::string ResultJson(const JobFacts& facts, absl::string_view job_id, TimePoint now);

// Whether a file for `flag` can likely be written: to be asked before the job starts. Fails with
// the flag, the path and the cause.
absl::Status CheckWritable(absl::string_view flag, const std::string& path);

// Writes the file whole or not at all: readers never see half of it. What is no regular file (a
// FIFO, /dev/stdout) is written to as it is; a FIFO nobody reads is an error, not a wait.
absl::Status WriteResult(const std::string& path, absl::string_view text);
// The same for any file that `flag` names.
absl::Status WriteWhole(absl::string_view flag, const std::string& path, absl::string_view text);

}  // namespace dtrain::report
