// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "agent/containers/runtime.h"
#include "common/os/pidfd.h"

namespace dtrain::containers {

// How the program ended, when the runtime's client ended so: clients exit with 128 + n when a
// signal n killed the program. Nothing else tells the two apart, and a shell exits so as well.
os::ExitStatus ProgramStatus(const os::ExitStatus& client);

// The runtime could not start the program. Its own messages and the program's are on one stream,
// and both exit with the same codes: it is the runtime's failure when the last line is its own.
struct NotStarted {
  std::string why;    // its own words
  int exit_code = 0;  // what the job exits with: 126, 127 or that of a failed start
};
std::optional<NotStarted> WhyNotStarted(const Chosen& chosen, const os::ExitStatus& client,
                                        absl::string_view stderr_tail);

}  // namespace dtrain::containers
