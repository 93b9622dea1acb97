// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::hosts {

// Where one rank runs.
struct RankPlace {
  uint32_t rank = 0;
  std::string host;                 // as in the host list
  std::optional<std::string> cpus;  // a valid, non-empty cpulist, "0-3,8"
  uint32_t line = 0;
};

inline constexpr uint32_t kMaxRanks = 1 << 20;

// A rankfile: lines `rank N=host [slot=CPUS]`. The result is sorted by rank and holds the ranks
// 0 to n-1, each once. Errors as in hostfile.h.
absl::StatusOr<std::vector<RankPlace>> ParseRankfile(absl::string_view text,
                                                     absl::string_view name);

}  // namespace dtrain::hosts
