// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace dtrain::history {

// A job's words as those of a new one: without --key, which would name the old job, and with
// --detach, which may have come from a variable, unless it was in the foreground. INVALID_ARGUMENT:
// they are no launch. Pure.
absl::StatusOr<std::vector<std::string>> WordsToRerun(const std::vector<std::string>& words,
                                                      bool foreground = false);

}  // namespace dtrain::history
