// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/cli/options.h"
#include "launcher/faces/accelerate_settings.h"

// accelerate's configuration file (src/accelerate/commands/config/config_args.py).
namespace dtrain::faces {

struct AccelerateConfig {
  std::string path;  // as it is shown
  Value keys;        // a map of keys that accelerate knows
  std::string distributed_type;
};

// The file of --config_file (`path`), else, unless ranks run on CPUs (`cpu`), the one that
// `accelerate config` writes; none: there is none.
absl::StatusOr<std::optional<AccelerateConfig>> ReadAccelerateConfig(
    const std::string& path, bool cpu, const cli::Surroundings& surroundings);

// Puts the file's values where the command line has none, as accelerate's launcher does. `notes`
// gets what they do not mean here.
absl::Status ApplyAccelerateConfig(const AccelerateConfig& config, AccelerateValues& values,
                                   std::vector<std::string>& notes);

}  // namespace dtrain::faces
