// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "agent/inventory/roots.h"

namespace dtrain::inventory {

// How many AMD GPUs for data centres (Instinct) this process may compute on with ROCm; a Radeon,
// or one built into a CPU, shows a picture and does not count. dtrain assigns none of them, but a
// node that has some is not a node of cores alone.
uint32_t CountAmdGpus(const Roots& roots);

}  // namespace dtrain::inventory
