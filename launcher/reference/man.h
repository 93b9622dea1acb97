// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "launcher/reference/commands.h"

namespace dtrain::reference {

// What a page says of the dtrain that it is of.
struct Release {
  absl::string_view version;
  absl::string_view date;  // 2026-11-30
};

// The manual page of a command as roff with the macros of man(7). Pure.
std::string FormatManPage(const std::vector<Command>& all, const Command& command,
                          const Release& release);

}  // namespace dtrain::reference
