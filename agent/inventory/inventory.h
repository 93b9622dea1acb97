// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "agent/inventory/roots.h"
#include "dtrain/v1/node.pb.h"

namespace dtrain::inventory {

// What this node is, as far as one can tell at once (well under 2 ms): all but the GPUs, which
// ReadGpus of nvml.h asks for and may take seconds, the probe fields, which a ProbeListener has,
// and limits that depend on who asks (limits.h). Never fails: what cannot be read is left empty and
// said in `warnings`.
v1::Inventory ReadInventory(const Roots& roots = {});

// Of this process's user, to be shown; the number if no name is known. Asks no server.
std::string OwnUserName();

}  // namespace dtrain::inventory
