// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/detached/job_folder.h"
#include "launcher/detached/jobs.h"
#include "launcher/status/runtime_dir.h"

// Which job a command means. Calls may block.
namespace dtrain::status {

// At least one of them.
struct FoundJob {
  std::string id;
  std::optional<LiveJob> live;                  // its launcher listens on this machine
  std::optional<detached::JobFolder> detached;  // it was launched with --detach
};

// Those whose launcher listens. Fails where none of this user could listen now. Awaits an answer of
// the home's file system where launchers may listen there (story::AwaitAnswer).
absl::StatusOr<std::vector<LiveJob>> LiveJobs();

// For a command that can do without the rest.
struct LiveNow {
  std::vector<LiveJob> jobs;
  absl::Status unread;       // why there may be more
  bool home_answers = true;  // else `jobs` has only those that listen outside the home
};
// Likewise, but waits no longer than story::CheckAnswer for the home.
LiveNow ListLiveJobs();

// As detached::ChooseJob of all of them. Without a text the only running one. NOT_FOUND;
// INVALID_ARGUMENT: several. What fails on the way is returned only if nothing is found.
//
// Where the records do not answer (story::RecordsAnswer), a job that runs here with a terminal is
// found by its whole id, as it has no records yet; with `launcher_suffices`, for a command that
// needs only the launcher, a detached one too, without its folder. Otherwise awaits their answer.
absl::StatusOr<FoundJob> FindJob(const std::string& text, bool launcher_suffices = false);
// For a command that changes the job: without a text as story::OnlyOneFromHere.
absl::StatusOr<FoundJob> FindJobToChange(const std::string& text, absl::string_view command);

}  // namespace dtrain::status
