// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/result.h"

namespace dtrain::runtime {

std::string Printable(std::string_view text) {
  constexpr size_t kLongest = 200;
  std::string out(text.substr(0, kLongest));
  for (char& c : out) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  if (text.size() > kLongest) out += "...";
  return out;
}

}  // namespace dtrain::runtime
