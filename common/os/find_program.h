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

// Starts this very program, whatever has become of its file since.
inline constexpr char kThisProgram[] = "/proc/self/exe";

// Where this program's file is, or was.
absl::StatusOr<std::string> ProgramPath();

// The same if it is still there, and not that of another build; else kThisProgram. A list of
// processes shows what they were started as.
std::string SameProgram();

}  // namespace dtrain::os
