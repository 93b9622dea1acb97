// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace dtrain::output {

// Columns of a terminal that a character, which is no control, takes: 0 (it is drawn on the one
// before), 1 or 2 (Chinese, most emoji). Pure.
size_t CharacterWidth(char32_t c);

}  // namespace dtrain::output
