// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/cli/options.h"
#include "launcher/faces/accelerate_config.h"
#include "launcher/faces/accelerate_settings.h"

// The variables that accelerate's launcher sets for the script (src/accelerate/utils/launch.py).
namespace dtrain::faces {

struct AccelerateJob {
  // How accelerate would start the script: the variables differ.
  enum class Path { kPlain, kTorchrun, kDeepSpeed };
  AccelerateValues values;
  std::optional<AccelerateConfig> config;  // already in `values`
  Path path = Path::kPlain;
  bool cpu = false;
  bool precision_is_the_files = false;
};

// Sets all but values and config, and checks the values that accelerate checks.
absl::Status PrepareVariables(AccelerateJob& job);

absl::StatusOr<Variables> MakeVariables(const AccelerateJob& job,
                                        const cli::Surroundings& surroundings);

}  // namespace dtrain::faces
