// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "launcher/detached/job_folder.h"
#include "launcher/status/command_options.h"

namespace dtrain::status {

// `dtrain logs` of a job with a folder: prints what is kept, rank by rank, the first that failed
// before the others, and with --follow what comes, until the job has ended. Blocks.
absl::Status PrintKeptLogs(const detached::JobFolder& job, const CommandOptions& options);

}  // namespace dtrain::status
