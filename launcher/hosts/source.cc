// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/source.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"

namespace dtrain::hosts {

Source::Source(absl::string_view name, bool one_line)
    : name_(Escape(name, 4096)), one_line_(one_line) {}

std::string Source::Place(Position at) const {
  return one_line_ ? absl::StrCat("column ", at.column) : absl::StrCat("line ", at.line);
}

absl::Status Source::Error(Position at, absl::string_view what, absl::string_view text,
                           absl::string_view advice) const {
  std::string place = one_line_ ? absl::StrCat(name_, ", column ", at.column)
                                : absl::StrCat(name_, ":", at.line, ":", at.column);
  return absl::InvalidArgumentError(
      absl::StrCat(place, ": ", what, ": \"", EscapeAscii(text), "\"; ", advice));
}

std::string EscapeAscii(absl::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  constexpr size_t kLimit = 100;  // enough to recognise the place, short enough for one line
  bool cut = text.size() > kLimit;
  std::string out;
  for (char c : text.substr(0, kLimit)) {
    auto byte = static_cast<uint8_t>(c);
    if (byte < 0x80) {
      out += Escape(absl::string_view(&c, 1));
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return cut ? out + "..." : out;
}

absl::StatusOr<uint32_t> ParseNumber(const Source& source, Position at, absl::string_view field,
                                     absl::string_view text, uint32_t low, uint32_t high) {
  uint64_t value = 0;
  bool ok = !text.empty();
  for (char c : text) {
    ok = ok && absl::ascii_isdigit(c);
    if (!ok) break;
    // Stays above `high` once it is, however many digits follow.
    if (value <= high) value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  if (ok && value >= low && value <= high) return static_cast<uint32_t>(value);
  absl::string_view fault = text.empty() ? " has no value"
                            : ok         ? " is out of range"
                                         : " is not a whole number";
  return source.Error(at, absl::StrCat(field, fault), text,
                      absl::StrCat("give a number from ", low, " to ", high));
}

}  // namespace dtrain::hosts
