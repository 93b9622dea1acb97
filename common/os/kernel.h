// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::os {

// "Linux 4.15, dtrain needs 4.18" for a release such as "4.15.0-213-generic"; empty when it is new
// enough, or not a version at all. Pure.
std::string TooOld(absl::string_view release);

// The same of this machine's kernel.
std::string KernelTooOld();

}  // namespace dtrain::os
