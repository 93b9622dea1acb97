// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "launcher/report/facts.h"

namespace dtrain::report {

// The table -v prints at the end of a job that used libdtrain: what each rank spent in collectives
// and how much of it waiting for the last one, the latest ranks first (they wait least). Lines with
// a newline each, empty when no rank used it. Pure.
std::string CollectiveTable(const JobFacts& facts);

}  // namespace dtrain::report
