// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dtrain::os {

// The step at which a spawn failed.
enum class SpawnStage {
  kNone,
  kProgram,  // not found, a directory, not executable
  kFork,
  kDeathSignal,
  kGroup,
  kCgroup,
  kLimits,
  kScheduling,
  kAffinity,
  kDescriptors,
  kUser,
  kKeyring,
  kWorkingDirectory,
  kExec,
};

struct SpawnError {
  SpawnStage stage = SpawnStage::kNone;
  int error_number = 0;
  std::string path;  // the program or directory it is about; else empty
};

// The error in words. `subject`: the program, or the working directory when it is about that.
absl::Status Explain(const SpawnError& error, absl::string_view subject);

}  // namespace dtrain::os
