// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "dtrain/v1/job.pb.h"

namespace dtrain::job {

// A launcher that is itself the program of a job's ranks.
struct NestedLauncher {
  std::string name;    // as people know it: "torchrun"
  std::string face;    // what stands after "dtrain" for the same command line here
  bool meets = false;  // one on each node can be one job, by the variables of torchrun-agent
};

// By the program's command line. Empty: it is no launcher that we know, or one that the user has
// told where the others are. PURE.
std::optional<NestedLauncher> NestedIn(const v1::Program& program);

}  // namespace dtrain::job
