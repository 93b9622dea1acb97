// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

// The private agent of a user on a machine without a resident one: where it is, and how bridges
// come to it. It serves from its directory like a resident agent, but this user alone, and only the
// launchers of this very build.
namespace dtrain::agent {

// Its directory, which is made: "run-HOST/keep-BUILD" in this user's cache; in /var/tmp where that
// is on a file server, cannot be used, or is too long a path for sockets.
absl::StatusOr<std::string> KeepDirectory();

// Jobs are there that it runs, or would take over if it were started.
bool HasKeptJobs();

// A connection to it. With `start` it is started where none runs; without, NOT_FOUND.
// DEADLINE_EXCEEDED: it does not answer. Blocks.
absl::StatusOr<os::UniqueFd> ConnectToKept(bool start);

}  // namespace dtrain::agent
