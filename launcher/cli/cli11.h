// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/flag_table.h"

// The only place that uses CLI11, which throws: nothing of that comes out.
namespace dtrain::cli {

struct Given {
  int flag;           // index
  std::string value;  // "true" for a bare switch
};

// `words` as SplitWords gives them. In the order of the definitions, mentions of one flag in their
// own order; only the last mention of a flag that does not repeat.
absl::StatusOr<std::vector<Given>> ParseFlags(const std::vector<Flag>& flags,
                                              const std::vector<std::string>& words);

// The flags by group, as --help shows them.
std::string FormatFlags(const std::vector<Flag>& flags);

}  // namespace dtrain::cli
