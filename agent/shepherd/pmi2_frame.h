// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/shepherd/pmi_line.h"

namespace dtrain::shepherd {

// A PMI-2 message: the length of its body in six characters, decimal and padded with blanks, then
// "cmd=name;key=value;...;". A ';' inside a value is doubled; a value may hold any other byte.
inline constexpr size_t kPmi2HeaderSize = 6;
// What clients have room for.
inline constexpr size_t kPmi2BodyMax = 64 << 10;

using Pmi2Fields = std::vector<std::pair<absl::string_view, std::string>>;

// How many of `bytes` make up the first frame; 0: more must come. A header that is not a length is
// taken for a whole frame, which the parser refuses.
size_t Pmi2FrameSize(absl::string_view bytes);

// Fails on anything but one whole frame; never on a command that it does not know. A key may come
// several times (spawn); Find returns the first.
absl::StatusOr<PmiRequest> ParsePmi2Frame(absl::string_view frame);

std::string FormatPmi2Frame(absl::string_view command, const Pmi2Fields& fields);

}  // namespace dtrain::shepherd
