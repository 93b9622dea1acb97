// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "common/base/ids.h"
#include "launcher/job/job_core.h"

namespace dtrain::job {

// Why `blamed`, which has lost another rank by its own words, failed: a rank had left while it was
// still needed. "rank 1 had finished (exit 0) while 3 ranks waited for it in all-reduce: did one
// rank get less data?"; "" when none had. Pure.
std::string LeftEarly(const std::vector<RankEnd>& ranks, Rank blamed);

}  // namespace dtrain::job
