// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::self {

// Descriptor on which a launch leaves its result file: --result-json /dev/fd/3.
inline constexpr int kResultFd = 3;

// This program's file, under the name that a process list then shows.
std::string OwnPath();

struct LaunchEnd {
  int code = 0;            // its exit code; 128 + n when signal n killed it
  std::string result;      // what it wrote to kResultFd
  bool signalled = false;  // SIGINT, SIGTERM or SIGHUP came for us meanwhile
};

// Runs `argv` (this program, as `dtrain launch`) as a child and hands over its standard output line
// by line, without the line's end (as output::LineSplitter does). Its standard error
// is ours, its standard input empty. Signals for us go on to it; when we are killed, it ends its
// job. Takes the signals' and child's news on a loop of its own; returns when the child has ended.
absl::StatusOr<LaunchEnd> RunLaunch(const std::vector<std::string>& argv,
                                    const std::vector<std::string>& environment,
                                    absl::AnyInvocable<void(absl::string_view line)> on_line);

}  // namespace dtrain::self
