// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/cli11.h"
#include "launcher/cli/flag_table.h"

namespace dtrain::cli {

// A command line in one spelling: "-np4x" cannot be told from "-n p4x" without knowing the flags,
// and nothing after the command's first word may be taken for ours.
struct Words {
  std::vector<std::string> flags;    // "--name" then its value, if it takes one; "--name=VALUE"
                                     // for a switch that was given a value
  std::vector<std::string> command;  // untouched; without the "--" before it
  bool apart = false;                // that "--" was there
  std::vector<std::string>
      further;  // what follows mpirun's ":": flags and command of another program
};

// Accepts --name VALUE, --name=VALUE, the same with one dash, '_' for '-', -nVALUE, -n VALUE,
// -n=VALUE and switches run together (-qv). A ':' that stands alone ends the command, unless "--"
// stands before it. Fails for a flag that does not exist (naming the nearest) and for a missing
// value.
absl::StatusOr<Words> SplitWords(const std::vector<Flag>& flags,
                                 const std::vector<std::string>& args);

// The command line of a subcommand whose operands are not a command: its flags may stand behind
// them, too.
struct MixedWords {
  std::vector<Given> flags;
  std::vector<std::string> operands;
};

absl::StatusOr<MixedWords> SplitMixed(const std::vector<Flag>& flags,
                                      std::vector<std::string> args);

}  // namespace dtrain::cli
