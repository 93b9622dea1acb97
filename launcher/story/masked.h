// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

// Commands and variables as they may be shown: lists and pages are copied into tickets and chats.
// Pure.
namespace dtrain::story {

// "***" unless the variable is one whose values are no secrets, such as NCCL_DEBUG.
std::string MaskedValue(absl::string_view name, absl::string_view value);

// The words of a launch, with the values of its -x NAME=VALUE (--export) masked.
std::vector<std::string> MaskedWords(std::vector<std::string> words);

}  // namespace dtrain::story
