// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dtrain::os {

// A unix socket that is bound to a path. `maker`: the user who made it; none: the kernel cannot
// tell (before Linux 5.3).
using SeeUnixSocket = absl::FunctionRef<void(absl::string_view path, std::optional<uid_t> maker)>;

// Calls `see` for each of them in this network namespace that is not connected. UNAVAILABLE: the
// kernel does not answer (unix_diag), and /proc/net/unix is the only list. RESOURCE_EXHAUSTED:
// there are more than `most`, bound or not. Anybody may make a million.
absl::Status ForEachUnixSocket(size_t most, SeeUnixSocket see);

}  // namespace dtrain::os
