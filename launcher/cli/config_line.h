// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace dtrain::cli {

// The line, from 1, of a configuration file where `key` is first set in a section, as which the top
// of the file counts if it is "launch"; 0 when it is not found. For messages only: the file is read
// by CLI11, which does not tell lines. Pure.
size_t LineOfKey(absl::string_view text, absl::string_view key,
                 absl::string_view section = "launch");

}  // namespace dtrain::cli
