// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dtrain/v1/journal.pb.h"
#include "launcher/cli/options.h"
#include "launcher/faces/translation.h"

namespace dtrain {

// Carries out a launch, or shows what it would do, and returns the exit code. `translation`: of
// another launcher's command line; null: it was our own. `read`: by cli::RecordInto, with our own.
int Launch(cli::LaunchOptions options, const faces::Translation* translation,
           std::unique_ptr<v1::Spec> read);

// `dtrain resume`: the launcher of a detached job, from where the one before has left it. `args`
// begin with the command.
int RunLauncher(const std::vector<std::string>& args);

}  // namespace dtrain
