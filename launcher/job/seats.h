// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "common/base/ids.h"

namespace dtrain::job {

// The nodes that are there, in the order of the node ranks that they get. `seats`: who had each
// node rank in the attempt before; none: a host that this attempt does not have. A node that is
// still there keeps its place, as what its ranks have in caches and on its disks is theirs; one
// that comes in takes the place of one that is gone. Pure.
std::vector<NodeId> Seated(const std::vector<NodeId>& present,
                           const std::vector<std::optional<NodeId>>& seats);

}  // namespace dtrain::job
