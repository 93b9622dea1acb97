// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace dtrain::os {

// A unix socket that is bound to a path. `maker`: the user who made it; none: the kernel cannot
// tell (before Linux 5.3).
using SeeUnixSocket = absl::FunctionRef<void(absl::string_view path, std::optional<uid_t> maker)>;

// Calls `see` for each of them in this network namespace that is not connected. False: the kernel
// does not answer (unix_diag), and /proc/net/unix is the only list.
bool ForEachUnixSocket(SeeUnixSocket see);

}  // namespace dtrain::os
