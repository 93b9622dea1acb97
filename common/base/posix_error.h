// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dtrain {

// A status for a failed system call: "<what>: <text of error_number>", e.g.
// PosixError(ENOENT, "open /etc/hosts") -> NOT_FOUND: open /etc/hosts: No such file or directory.
absl::Status PosixError(int error_number, absl::string_view what);

// The text alone, "No such file or directory".
absl::string_view PosixErrorText(int error_number);

}  // namespace dtrain
