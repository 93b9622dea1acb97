// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace dtrain {

// JSON in which no string can do anything to a terminal: DEL, C1 controls and characters that turn
// text around (U+202A to U+202E, U+2066 to U+2069) become \uNNNN, as JSON itself demands of other
// controls.
std::string SafeJson(absl::string_view json);

}  // namespace dtrain
