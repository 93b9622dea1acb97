// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace dtrain::hosts {

inline constexpr size_t kMaxHostfileBytes = 10 << 20;

// The text of a host file or rankfile. Never blocks: only regular files are read. Fails, with the
// path and the reason, for anything else, for NUL bytes and beyond kMaxHostfileBytes. "-" is a
// file of that name.
absl::StatusOr<std::string> ReadHostfile(const std::string& path);

}  // namespace dtrain::hosts
