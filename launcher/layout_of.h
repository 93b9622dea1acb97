// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "launcher/output/layout.h"
#include "launcher/plan/plan.h"

namespace dtrain {

// What output has to know of a plan.
output::Layout LayoutOf(const plan::Plan& plan, std::string job_id, uint32_t attempt = 0);

}  // namespace dtrain
