// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "launcher/detached/job_folder.h"
#include "launcher/detached/jobs.h"

// What there is to know of detached jobs, running and ended, from their folders. Calls may block.
namespace dtrain::story {

// A user waits no longer without a word.
inline constexpr std::chrono::seconds kFolderPatience{3};

// Returns once the file system of this folder has answered. Where that takes longer than 3 s it
// prints so on stderr; Ctrl-C ends the process meanwhile. As os::AwaitReturn, for processes without
// other threads that hold locks.
void AwaitAnswer(const std::string& folder);
// Likewise, but without waiting any longer. FAILED_PRECONDITION: it has not answered.
absl::Status CheckAnswer(const std::string& folder,
                         std::chrono::seconds patience = kFolderPatience);

// detached::Jobs::UsualPlace, once its file system has answered (AwaitAnswer).
absl::StatusOr<std::string> AwaitPlace();
// Likewise, but FAILED_PRECONDITION where it does not answer (CheckAnswer).
absl::StatusOr<std::string> PlaceThatAnswers(std::chrono::seconds patience = kFolderPatience);

// Those of this user, in AwaitPlace. FAILED_PRECONDITION: others can change their folder, so
// nothing in it is believed.
absl::StatusOr<detached::Jobs> OpenJobs();
// Likewise, but waits no longer than `limit` where there is one, or a second if that is less.
// DEADLINE_EXCEEDED: their file system has not answered.
absl::StatusOr<detached::Jobs> OpenJobsWithin(std::optional<Duration> limit);
// Likewise, in PlaceThatAnswers.
absl::StatusOr<detached::Jobs> OpenJobsThatAnswer();
// For a command that can do without them: false where their file system does not answer within 3 s;
// then it prints on stderr that the command continues.
bool RecordsAnswer();

// As detached::Jobs::Find; without a text the only job that has not ended.
absl::StatusOr<detached::JobFolder> Find(const detached::Jobs& jobs, absl::string_view text);

struct RunningJob {
  std::string id;
  std::string directory;  // where it was launched
};
// For a command that changes a job, where none is named: the id of the only one that was launched
// from this directory. Another may be somebody else's on a shared account. NOT_FOUND: no job runs;
// INVALID_ARGUMENT: what to type. `command`: "stop".
absl::StatusOr<std::string> OnlyOneFromHere(const std::vector<RunningJob>& running,
                                            absl::string_view command);
// The detached ones that have not ended.
absl::StatusOr<std::vector<RunningJob>> Running(const detached::Jobs& jobs);

// NOT_FOUND: the job's folder is not there any more; says where it went.
absl::Status CheckThere(const detached::JobFolder& job);

// What a command exits with after this error.
int ExitCodeOf(const absl::Status& status);

// On this machine's clock and in its zone: "2026-11-27 01:02:03".
std::string ShownTime(int64_t unix_nanos);

}  // namespace dtrain::story
