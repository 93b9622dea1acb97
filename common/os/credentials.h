// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"

namespace dtrain::os {

// Fails when this process holds the rights of two users or groups: its real, effective and saved
// ids differ, as a setuid or setgid bit on its program makes them. What it starts could then take
// rights that whoever started it does not have.
absl::Status CheckOneIdentity();

}  // namespace dtrain::os
