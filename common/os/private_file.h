// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace dtrain::os {

// Whether a file that holds a secret (a key, a token) is one that only we and root can have
// written or read: a regular file and no link, owned by root or us, closed to group and others, in
// directories that nobody else can change. PERMISSION_DENIED says what is wrong and the command
// that mends it.
absl::Status CheckPrivateFile(const std::string& path);

// Its contents; what was checked is what is read.
absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, size_t limit = 1 << 20);

}  // namespace dtrain::os
