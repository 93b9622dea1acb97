// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/text.h"

namespace dtrain::fuzz {

inline absl::string_view Text(const uint8_t* data, size_t size) {
  return absl::string_view(reinterpret_cast<const char*>(data), size);
}

// An error about foreign bytes is fit for a terminal: short, and of nothing that Escape changes but
// the backslashes which it makes itself.
inline void ExpectPrintable(const absl::Status& status) {
  constexpr size_t kLongest = 1000;
  DTRAIN_CHECK(!status.message().empty() && status.message().size() <= kLongest);
  const std::string plain = absl::StrReplaceAll(status.message(), {{"\\", "/"}});
  DTRAIN_CHECK(Escape(plain, 2 * kLongest) == plain);
}

}  // namespace dtrain::fuzz
