// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "dtrain/v1/job.pb.h"

namespace dtrain::report {

// What the rank table does not say: in which containers the programs run, a line for each. Empty:
// in none.
std::string ContainerLines(const v1::JobPart& part);

}  // namespace dtrain::report
