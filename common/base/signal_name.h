// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/strings/string_view.h"

namespace dtrain {

// "SIGTERM"; empty for numbers without a name, real-time signals among them.
absl::string_view SignalName(int signal);

}  // namespace dtrain
