// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launcher/detached/jobs.h"

namespace dtrain::history {

// Which ended jobs the user's configuration file says are kept: that of DTRAIN_CONFIG, which may be
// a path from `directory` on, or the usual one. INVALID_ARGUMENT: a mistake in it.
absl::StatusOr<detached::Retention> ReadRetention(const std::string& directory);

}  // namespace dtrain::history
