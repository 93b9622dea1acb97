// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/options.h"

namespace dtrain::cli {

// The variables of --env-file's files, NAME=VALUE each, in their order. The format is docker's: one
// a line, the value as it stands; empty lines and those that begin with # are skipped; a name alone
// passes on our own variable, if there is one. Errors are InvalidArgument and name file and line,
// but not what is there, which may be part of a secret.
absl::StatusOr<std::vector<std::string>> ReadEnvFiles(const std::vector<std::string>& paths,
                                                      const Surroundings& surroundings);

}  // namespace dtrain::cli
