// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"

namespace dtrain::os {

// Writes what stdio still holds for stdout. An error: not all of it, now or earlier, was taken. OK
// also where the reader has gone: he has what he wants.
absl::Status FinishStdout();

// Ends this process without destructors, because the last act of gRPC's shutdown may wait ten
// seconds for a poller of its own. What stdio holds is written. A build with LeakSanitizer looks
// for leaks first, and reports them by its own exit code.
[[noreturn]] void Leave(int exit_code);

}  // namespace dtrain::os
