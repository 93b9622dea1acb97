// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
#include "common/http/message.h"

namespace dtrain::http {
namespace {

absl::Status Bad(absl::string_view what) { return absl::InvalidArgumentError(what); }

absl::StatusOr<std::string> Decode(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const absl::string_view digits = text.substr(i + 1, 2);
      if (digits.size() != 2 || !absl::ascii_isxdigit(static_cast<unsigned char>(digits[0])) ||
          !absl::ascii_isxdigit(static_cast<unsigned char>(digits[1]))) {
        return Bad("a % in the path is not followed by two hex digits");
      }
      c = absl::HexStringToBytes(digits)[0];
      i += 2;
    }
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      return Bad("the path holds a control character");
    }
    out.push_back(c);
  }
  return out;
}

}  // namespace

absl::StatusOr<Target> ParseTarget(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> halves =
      absl::StrSplit(text, absl::MaxSplits('?', 1));
  absl::StatusOr<std::string> path = Decode(halves.first);
  if (!path.ok()) return path.status();
  if (path->empty() || (*path)[0] != '/') return Bad("the path does not begin with /");
  for (absl::string_view segment : absl::StrSplit(*path, '/')) {
    if (segment == "." || segment == "..") return Bad("the path holds a . or .. segment");
  }
  Target target;
  target.text = std::string(text);
  target.path = *std::move(path);
  for (absl::string_view part : absl::StrSplit(halves.second, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    absl::StatusOr<std::string> name = Decode(pair.first);
    if (!name.ok()) return name.status();
    absl::StatusOr<std::string> value = Decode(pair.second);
    if (!value.ok()) return value.status();
    if (!target.query.emplace(*std::move(name), *std::move(value)).second) {
      return Bad("a parameter is given twice");
    }
  }
  return target;
}

}  // namespace dtrain::http
