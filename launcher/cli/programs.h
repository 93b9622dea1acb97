// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/flag_table.h"

namespace dtrain::cli {

// One program of a job, with the flags that are its own.
struct RawProgram {
  RawLaunch raw;
  std::vector<std::string> command;
};

// The programs after the first, from what follows ':'. They may have flags for the number of ranks,
// the environment, the working directory, GPUs, hosts, containers and -m; all others are the whole
// job's and stand before the first.
absl::StatusOr<std::vector<RawProgram>> ParsePrograms(std::vector<std::string> further);

// --container…: what each program has of its own on top of `shared`, which is for all, and whose
// mounts and options wait for a launch with an image.
absl::Status JoinContainers(const v1::Container& shared, std::vector<RawProgram>& programs);

// Writes down in the first program's options what the whole job needs to know of all of them: who
// has how many ranks, and the hosts.
absl::Status JoinPrograms(std::vector<RawProgram>& programs);

}  // namespace dtrain::cli
