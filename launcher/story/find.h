// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/detached/job_folder.h"
#include "launcher/detached/jobs.h"

// What there is to know of detached jobs, running and ended, from their folders. Calls may block.
namespace dtrain::story {

// Those of this user. FAILED_PRECONDITION: others can change their folder, so nothing in it is
// believed.
absl::StatusOr<detached::Jobs> OpenJobs();

// As detached::Jobs::Find; without a text the only job that has not ended.
absl::StatusOr<detached::JobFolder> Find(const detached::Jobs& jobs, absl::string_view text);

// NOT_FOUND: the job's folder is not there any more; says where it went.
absl::Status CheckThere(const detached::JobFolder& job);

// What a command exits with after this error.
int ExitCodeOf(const absl::Status& status);

// On this machine's clock and in its zone: "2026-11-27 01:02:03".
std::string ShownTime(int64_t unix_nanos);

}  // namespace dtrain::story
