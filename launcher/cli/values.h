// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"

// Values of flags. Errors are InvalidArgument and say what the text is not and what it may be;
// which flag it was, the caller adds. Pure.
namespace dtrain::cli {

absl::StatusOr<uint64_t> ParseNumber(absl::string_view text, uint64_t min, uint64_t max);

// "30" and "30s", "2m", "500ms", "1h", "1.5s"; at most a year.
absl::StatusOr<Duration> ParseDuration(absl::string_view text);

// Bytes: "4096", "64K", "64KiB", "1.5G"; units are powers of 1024.
absl::StatusOr<uint64_t> ParseSize(absl::string_view text);

// "0,8-15": numbers and ranges of them, from `min` to `max`.
absl::StatusOr<std::vector<std::pair<uint32_t, uint32_t>>> ParseRanges(absl::string_view text,
                                                                       uint32_t max);

// true, false, yes, no, on, off, 1, 0 in any case.
absl::StatusOr<bool> ParseBool(absl::string_view text);

}  // namespace dtrain::cli
