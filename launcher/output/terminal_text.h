// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::output {

// Appends `prefix` and one worker's `line`, which has no newline, to what goes to a terminal that
// several workers share, so that it can do nothing but fill its own line after its own prefix:
// colours (SGR), tabs and "erase to the end of the line" pass, and colours end with the line; a
// carriage return, as progress bars write it, begins again with the prefix. Every other control
// byte or sequence, and what turns text around, is shown as \xNN. Stateless: of a sequence cut in
// two, each part is shown. Pure.
void AppendForTerminal(absl::string_view line, absl::string_view prefix, std::string& out);

}  // namespace dtrain::output
