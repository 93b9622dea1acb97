// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/config_line.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace dtrain::cli {
namespace {

absl::string_view Unquoted(absl::string_view word) {
  word = absl::StripAsciiWhitespace(word);
  for (absl::string_view quote : {"\"", "'"}) {
    if (absl::ConsumePrefix(&word, quote)) absl::ConsumeSuffix(&word, quote);
  }
  return word;
}

}  // namespace

size_t LineOfKey(absl::string_view text, absl::string_view key, absl::string_view section) {
  size_t number = 0;
  bool ours = section == "launch";
  const std::string prefix = absl::StrCat(section, ".");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (absl::ConsumePrefix(&line, "[")) {
      ours = Unquoted(line.substr(0, line.find(']'))) == section;
      continue;
    }
    absl::string_view name = Unquoted(line.substr(0, line.find('=')));
    const bool dotted = absl::ConsumePrefix(&name, prefix);
    if ((ours || dotted) && Unquoted(name) == key) return number;
  }
  return 0;
}

}  // namespace dtrain::cli
