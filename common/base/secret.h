// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/strings/string_view.h"

namespace dtrain {

// Whether two secrets are the same. Takes as long for a wrong guess as for a right one.
bool SameSecret(absl::string_view a, absl::string_view b);

}  // namespace dtrain
