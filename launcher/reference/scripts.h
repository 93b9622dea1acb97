// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/strings/string_view.h"

namespace dtrain::reference {

// What `shell` ("bash", "zsh", "fish") reads to complete the words of dtrain; empty for another.
// It knows nothing of its own but how to ask `dtrain completion words`, so that it does not age.
absl::string_view CompletionScript(absl::string_view shell);

}  // namespace dtrain::reference
