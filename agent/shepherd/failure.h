// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/os/spawn.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

v1::NodeFailure MakeFailure(v1::NodeFailure::Kind kind, int exit_code, absl::string_view message,
                            int error_number = 0);

// What a failed spawn means for the job: 127 and 126 as a shell has them, or a lack of resources.
v1::NodeFailure SpawnFailure(const v1::JobPart& part, const v1::Program& program,
                             const os::SpawnError& error, const absl::Status& status);

// What a part needs besides its workers cannot be had.
v1::NodeFailure CannotStart(const absl::Status& status);

// Processes of the job cannot be ended: "pid 17 (state D, in nfs_wait)".
v1::NodeFailure UnkillableFailure(absl::string_view who);

// Of what a worker leaves there: PyTorch's texts have some kilobytes.
inline constexpr size_t kMostErrorBytes = 64 << 10;

// A worker's error file (TORCHELASTIC_ERROR_FILE) in the job's scratch folder.
inline std::string ErrorFileName(uint32_t rank) { return absl::StrCat("rank", rank, ".json"); }
// Empty if there is no folder.
inline std::string ErrorFilePath(const std::string& folder, uint32_t rank) {
  return folder.empty() ? "" : absl::StrCat(folder, "/", ErrorFileName(rank));
}

}  // namespace dtrain::shepherd
