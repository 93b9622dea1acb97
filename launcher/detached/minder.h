// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace dtrain::detached {

// The word behind `dtrain` by which it becomes a minder.
inline constexpr char kMinderWord[] = "mind";

// The process that starts the launcher of the job in `folder` again when it is killed. Stdout and
// stderr are the job's launcher.log. One that ends by itself is not started again, and the minder
// ends, too. It may be killed: the launcher runs on. Returns its exit code.
int RunMinder(const std::string& folder);

}  // namespace dtrain::detached
