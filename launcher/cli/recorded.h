// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "dtrain/v1/journal.pb.h"
#include "launcher/cli/options.h"

// So that a command line means the same when it is read once more, by another process.
namespace dtrain::cli {

// As `real`, and everything that is asked of it goes into the spec, which outlives it.
Surroundings RecordInto(v1::Spec& spec, Surroundings real);
// The variables that stand for flags of dtrain launch, or lead to its configuration file, as they
// are in this environment (NAME=VALUE each): a part of what was asked for.
void RecordFlagVariables(const std::vector<std::string>& environment, v1::Spec& spec);
// The names of those variables.
std::vector<std::string> FlagVariableNames();
// `environment` (NAME=VALUE each) with those that were recorded in place of its own.
std::vector<std::string> WithFlagVariablesOf(const v1::Spec& spec,
                                             std::vector<std::string> environment);
// The same answers again. `spec` outlives it.
Surroundings SurroundingsOf(const v1::Spec& spec);

}  // namespace dtrain::cli
