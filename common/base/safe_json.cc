// SPDX-License-Identifier: Apache-2.0
#include "common/base/safe_json.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace dtrain {

std::string SafeJson(absl::string_view json) {
  std::string out;
  out.reserve(json.size());
  const auto byte = [&](size_t i) {
    return i < json.size() ? static_cast<uint8_t>(json[i]) : uint8_t{0};
  };
  for (size_t i = 0; i < json.size();) {
    size_t length = 1;
    uint32_t code = 0;
    if (byte(i) == 0x7F) {
      code = 0x7F;
    } else if (byte(i) == 0xC2 && byte(i + 1) >= 0x80 && byte(i + 1) < 0xA0) {
      length = 2;
      code = byte(i + 1);
    } else if (byte(i) == 0xE2 &&
               ((byte(i + 1) == 0x80 && byte(i + 2) >= 0xAA && byte(i + 2) <= 0xAE) ||
                (byte(i + 1) == 0x81 && byte(i + 2) >= 0xA6 && byte(i + 2) <= 0xA9))) {
      length = 3;
      code = 0x2000 | (byte(i + 1) & 0x3Fu) << 6 | (byte(i + 2) & 0x3Fu);
    }
    if (code != 0) {
      absl::StrAppend(&out, "\\u", absl::Hex(code, absl::kZeroPad4));
    } else {
      out += json[i];
    }
    i += length;
  }
  return out;
}

}  // namespace dtrain
