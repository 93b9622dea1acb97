// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::report {

// FailureReport once more, from what ResultJson has written, for a terminal; empty after a success,
// and where it cannot be read. Pure.
std::string ReportOf(absl::string_view result_json);

}  // namespace dtrain::report
