// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "launcher/cli/page.h"

namespace dtrain::reference {

// A command of dtrain, from the definition that its own parser uses.
struct Command {
  std::string name;  // "launch", "bench p2p"; empty: dtrain itself
  std::string summary;
  cli::Page page;
  std::vector<cli::Flag> accepts;  // the page's flags, and those it passes on to launch
};

Command CommandOf(cli::Page page, absl::string_view summary);

// Gives the page of `man` the names of all pages.
void ListPages(std::vector<Command>& commands);

// The flag that each command has.
cli::Flag HelpFlag();

cli::Page CompletionPage();
cli::Page ManPage();

// The one with this name; nullptr: there is none.
const Command* Find(const std::vector<Command>& commands, absl::string_view name);

// "dtrain-bench-p2p"
std::string ManPageName(const Command& command);

}  // namespace dtrain::reference
