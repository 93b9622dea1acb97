// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace dtrain::os {

// Starts this very program, whatever has become of its file since.
inline constexpr char kThisProgram[] = "/proc/self/exe";

// Where this program's file is, or was.
absl::StatusOr<std::string> ProgramPath();

// The same if it is still there, and not that of another build; else kThisProgram. A list of
// processes shows what they were started as.
std::string SameProgram();

}  // namespace dtrain::os
