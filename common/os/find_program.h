// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/spawn_error.h"

namespace dtrain::os {

// What Spawn would run for `program`: the path, from our own working directory, or an error with
// ENOENT (no such program), EACCES (not executable), EISDIR.
absl::StatusOr<std::string> FindProgram(absl::string_view program, absl::string_view search_path,
                                        absl::string_view working_directory, SpawnError* error);

// `file` as seen from `directory`; itself when that is empty or `file` is absolute.
std::string Joined(absl::string_view directory, absl::string_view file);

}  // namespace dtrain::os
