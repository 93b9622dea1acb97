// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::output {

// The text with '#' for what differs between ranks that fail of one cause: addresses of memory and
// of sockets, and the numbers of ranks, devices, processes and descriptors. Numbers alone are kept,
// as they may be the cause. Pure.
std::string Likeness(absl::string_view text);

}  // namespace dtrain::output
