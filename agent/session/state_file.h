// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dtrain::session {

// Makes or replaces a file that an agent after this one reads: it has all of `bytes` or what it had
// before. For its owner only.
absl::Status WriteStateFile(const std::string& path, absl::string_view bytes);
// What a crash amid WriteStateFile leaves beside it.
std::string DraftOf(absl::string_view path);

}  // namespace dtrain::session
