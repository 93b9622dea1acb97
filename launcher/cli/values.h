// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

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

// true, false, yes, no, on, off, 1, 0 in any case.
absl::StatusOr<bool> ParseBool(absl::string_view text);

}  // namespace dtrain::cli
