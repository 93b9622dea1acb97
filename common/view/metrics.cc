// SPDX-License-Identifier: Apache-2.0
#include "common/view/metrics.h"

#include "absl/strings/str_cat.h"

namespace dtrain::view {

void AddFamily(std::string& out, absl::string_view name, absl::string_view type,
               absl::string_view help) {
  absl::StrAppend(&out, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

std::string Label(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace dtrain::view
