// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dtrain::os {

// Ends this process without destructors, because the last act of gRPC's shutdown may wait ten
// seconds for a poller of its own. What stdio holds is written. A build with LeakSanitizer looks
// for leaks first, and reports them by its own exit code.
[[noreturn]] void Leave(int exit_code);

}  // namespace dtrain::os
