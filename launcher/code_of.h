// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "launcher/code.h"
#include "launcher/job_records.h"
#include "launcher/stage/snapshot.h"

namespace dtrain {

// Takes the code that a launch stages. `records`: null unless the job is detached. All launchers of
// a detached job stage the same code, which the first of them keeps in the job's folder. Blocks.
absl::StatusOr<std::unique_ptr<Code>> CodeOf(const stage::Options& options,
                                             const JobRecords* records, bool may_restart);

}  // namespace dtrain
