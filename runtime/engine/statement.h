// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "runtime/engine/matching.h"

namespace dtrain::runtime {

// One sentence that names the ranks and what each asks for first in its list. `names`: the ranks'
// numbers in the job, if these differ. Pure.
std::string CompareFirst(const std::vector<PendingList>& lists, const std::vector<int>& names = {});

}  // namespace dtrain::runtime
