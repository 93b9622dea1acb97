// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/bench/options.h"
#include "launcher/cli/flag_table.h"
#include "launcher/cli/page.h"

namespace dtrain::bench {

// A flag of bench's own: how it is written and explained, and what it does.
struct Flag {
  cli::Flag shown;
  absl::Status (*set)(absl::string_view value, Options& out);
};

std::vector<Flag> FlagsOf(Tool tool);
std::vector<cli::Flag> ShownFlags(const std::vector<Flag>& flags);

// Whether bench gives this flag of launch itself, so that it cannot be given to bench.
bool IsTaken(absl::string_view name);

cli::Page GeneralPage();      // dtrain bench
cli::Page PageOf(Tool tool);  // dtrain bench allreduce

}  // namespace dtrain::bench
