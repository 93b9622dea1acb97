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

// One message of either version: key=value pairs, the first of which names the command.
struct PmiRequest {
  std::string command;
  bool multi_line = false;  // PMI-1's "mcmd=": more lines follow, until "endcmd"
  std::vector<std::pair<std::string, std::string>> arguments;

  // Null when it is not there.
  const std::string* Find(absl::string_view key) const;
  std::optional<int> FindInt(absl::string_view key) const;
};

// How many of `bytes` make up the first line, with its newline; 0: more must come. A line that is
// too long is cut where the parser sees that.
size_t PmiLineSize(absl::string_view bytes);

// PMI-1: pairs are separated by spaces. `line` without its newline. Fails on anything that is no
// such message; never on a command that it does not know.
absl::StatusOr<PmiRequest> ParsePmiLine(absl::string_view line);

// "cmd=<command> key=value ...\n". Values must be fit for a line: see PmiWord.
std::string FormatPmiLine(
    absl::string_view command,
    std::initializer_list<std::pair<absl::string_view, absl::string_view>> arguments);

// Whether a line can carry it as a value. What ranks put by PMI-2 may be anything.
bool FitsPmiLine(absl::string_view value);

// `text` with what a value may not hold (spaces, control bytes, non-ASCII) turned into '_'.
std::string PmiWord(absl::string_view text, size_t limit);

}  // namespace dtrain::shepherd
