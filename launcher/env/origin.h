// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtrain/v1/job.pb.h"

// Where a variable of a worker comes from. PURE.
namespace dtrain::env {

// "torchrun's (--contract torch)". `part` is the launch's, as the command line gave it.
std::string OriginOf(absl::string_view name, absl::string_view value, const v1::JobPart& part);

// "NAME=value" of each, in groups by their origin, each under a "# " line. A value that a shell
// would not read as one word is quoted.
std::string FormatEnvironment(std::vector<std::string> variables, const v1::JobPart& part);

// How the worker begins besides, as "# " lines, from the texts of its /proc/self/stat, status and
// limits, one behind the other. What is not in them is left out.
std::string FormatProcess(absl::string_view proc);

}  // namespace dtrain::env
