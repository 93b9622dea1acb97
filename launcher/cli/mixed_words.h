// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/cli11.h"
#include "launcher/cli/flag_table.h"

namespace dtrain::cli {

// The command line of a subcommand whose operands are not a command: its flags may stand behind
// them, too.
struct MixedWords {
  std::vector<Given> flags;
  std::vector<std::string> operands;
};

absl::StatusOr<MixedWords> SplitMixed(const std::vector<Flag>& flags,
                                      std::vector<std::string> args);

}  // namespace dtrain::cli
