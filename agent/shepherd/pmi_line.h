// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::shepherd {

// Limits that we announce; a client's line buffer has the size of one line.
inline constexpr size_t kPmiLineMax = 1024;  // with the newline
inline constexpr size_t kPmiKeyMax = 64;
inline constexpr size_t kPmiNameMax = 256;
inline constexpr size_t kPmiValueMax = 1024;

// One PMI-1 message: space-separated key=value pairs, the first of which names the command.
struct PmiRequest {
  std::string command;
  bool multi_line = false;  // "mcmd=": more lines follow, until "endcmd"
  std::vector<std::pair<std::string, std::string>> arguments;

  // Null when it is not there.
  const std::string* Find(absl::string_view key) const;
  std::optional<int> FindInt(absl::string_view key) const;
};

// `line` without its newline. Fails on anything that is no such message; never on a command that
// it does not know.
absl::StatusOr<PmiRequest> ParsePmiLine(absl::string_view line);

// "cmd=<command> key=value ...\n". Values must be fit for a line: see PmiWord.
std::string FormatPmiLine(
    absl::string_view command,
    std::initializer_list<std::pair<absl::string_view, absl::string_view>> arguments);

// `text` with what a value may not hold (spaces, control bytes, non-ASCII) turned into '_'.
std::string PmiWord(absl::string_view text, size_t limit);

}  // namespace dtrain::shepherd
