// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace dtrain::cli {

// Why the hosts of Slurm's job `id` are not ours: it has ended, or Slurm here knows no such job.
// Empty: nothing says so. Asks Slurm, for some seconds at most.
std::string SlurmJobTrouble(const std::string& id);

// The same from what `squeue --noheader --jobs ID --format %T` has written and returned. Pure.
std::string SlurmJobTrouble(const std::string& written, bool succeeded);

}  // namespace dtrain::cli
