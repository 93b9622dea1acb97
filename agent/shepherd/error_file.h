// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace dtrain::shepherd {

// Of what a worker leaves there: PyTorch's texts have some kilobytes.
inline constexpr size_t kMostErrorBytes = 64 << 10;

// A worker's error file (TORCHELASTIC_ERROR_FILE) in the job's scratch folder.
inline std::string ErrorFileName(uint32_t rank) { return absl::StrCat("rank", rank, ".json"); }
// Empty where there is no folder.
inline std::string ErrorFilePath(const std::string& folder, uint32_t rank) {
  return folder.empty() ? "" : absl::StrCat(folder, "/", ErrorFileName(rank));
}

}  // namespace dtrain::shepherd
