// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace dtrain {

// Text from outside made safe for a terminal or a log line: control bytes, DEL, backslash and
// invalid UTF-8 become \xNN (or \n, \t, \r, \\), and more than `limit` bytes are cut with "...".
std::string Escape(absl::string_view text, size_t limit = 200);

// Without colours (SGR) and "erase to the end of the line", which say nothing in a message.
std::string WithoutColours(absl::string_view line);

// "; did you mean hostfile?" with `before` in front of the one of `known` that `word` was most
// likely meant to be; empty when none is near.
std::string DidYouMean(absl::string_view word, const std::vector<std::string>& known,
                       absl::string_view before = "");

// "3 nodes", "1 node": the count and the noun with a plural s when needed.
std::string Count(size_t n, absl::string_view noun);

}  // namespace dtrain
