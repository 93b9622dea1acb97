// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::hosts {

// A place in a text, both from 1; columns count bytes.
struct Position {
  uint32_t line = 1;
  uint32_t column = 1;

  Position Plus(size_t bytes) const { return {line, column + static_cast<uint32_t>(bytes)}; }
};

// What a text is called in messages: a file, or a one-line value of a flag or variable.
class Source {
 public:
  static Source File(absl::string_view name) { return Source(name, false); }
  static Source OneLine(absl::string_view name) { return Source(name, true); }

  const std::string& name() const { return name_; }
  // "line 3", or "column 3" of a one-line value.
  std::string Place(Position at) const;
  // `FILE:LINE:COL: what: "text"; advice`, the text escaped.
  absl::Status Error(Position at, absl::string_view what, absl::string_view text,
                     absl::string_view advice) const;

 private:
  Source(absl::string_view name, bool one_line);

  std::string name_;  // escaped
  bool one_line_;
};

// As dtrain::Escape, and bytes beyond ASCII as \xNN too: a look-alike letter must be seen.
std::string EscapeAscii(absl::string_view text);

// A whole number between `low` and `high`; `field` names it in the error.
absl::StatusOr<uint32_t> ParseNumber(const Source& source, Position at, absl::string_view field,
                                     absl::string_view text, uint32_t low, uint32_t high);

}  // namespace dtrain::hosts
