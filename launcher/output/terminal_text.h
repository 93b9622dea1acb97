// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
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

// Appends what a worker has written, in any pieces, for a terminal of somebody else than its job's
// owner: text, tabs, the ends of lines and carriage returns; all else is shown as \xNN. Of a
// character that `text` cuts, the rest comes first in the next piece: its size is returned.
size_t AppendForOthers(absl::string_view text, std::string& out);

// The length of the UTF-8 character that `text` begins with, which is not ASCII; 0: none, or one
// that controls a terminal or turns text around.
size_t CharacterLength(absl::string_view text);
// Whether more bytes could make a character of `text`.
bool IsCutCharacter(absl::string_view text);
// As \xNN.
void AppendEscaped(char c, std::string& out);

}  // namespace dtrain::output
