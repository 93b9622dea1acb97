// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"

namespace dtrain::shepherd {

// What dtrain-spawner tells a shepherd that it starts (spawner/protocol.h). The rest of it the
// agent says again.
struct Order {
  Duration lease;  // for the agent to come
  uid_t agent_uid = 0;
};

// Of its `name value` lines; others may be there. INVALID_ARGUMENT: it is not whole.
absl::StatusOr<Order> ParseOrder(absl::string_view text);

}  // namespace dtrain::shepherd
