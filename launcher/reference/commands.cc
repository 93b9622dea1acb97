// SPDX-License-Identifier: Apache-2.0
#include "launcher/reference/commands.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace dtrain::reference {

cli::Flag HelpFlag() { return {"--help,-h", "Flags", "", "print this help", nullptr}; }

cli::Page CompletionPage() {
  cli::Page page;
  page.command = "dtrain completion";
  page.text =
      R"(Prints the script that makes a shell complete commands, flags, their values and the ids of jobs.
The packages install it; elsewhere the shell reads it when it starts.
)";
  page.usage = "dtrain completion SHELL";
  page.list_title = "Shells";
  page.list = {{"bash", "in ~/.bashrc: source <(dtrain completion bash)"},
               {"zsh", "in ~/.zshrc, after compinit: source <(dtrain completion zsh)"},
               {"fish", "dtrain completion fish > ~/.config/fish/completions/dtrain.fish"}};
  page.flags = {HelpFlag()};
  page.operand = cli::Page::Operand::kListed;
  return page;
}

cli::Page ManPage() {
  cli::Page page;
  page.command = "dtrain man";
  page.text =
      "Prints a manual page, in the form that man reads; without a name, the names of all.\n";
  page.usage = "dtrain man [PAGE]";
  page.examples = "  dtrain man dtrain-launch | man -l -\n";
  page.flags = {HelpFlag()};
  page.operand = cli::Page::Operand::kListed;
  return page;
}

Command CommandOf(cli::Page page, absl::string_view summary) {
  Command command;
  const absl::string_view name = absl::StripPrefix(page.command, "dtrain");
  command.name = std::string(absl::StripPrefix(name, " "));
  command.summary = std::string(summary);
  command.accepts = page.flags;
  command.page = std::move(page);
  return command;
}

void ListPages(std::vector<Command>& commands) {
  std::vector<cli::Page::Entry> pages;
  for (const Command& command : commands) {
    pages.push_back({ManPageName(command), command.summary});
  }
  for (Command& command : commands) {
    if (command.name != "man") continue;
    command.page.list = pages;
    command.page.list_title = "Pages";
  }
}

std::string ManPageName(const Command& command) {
  return absl::StrReplaceAll(command.page.command, {{" ", "-"}});
}

const Command* Find(const std::vector<Command>& commands, absl::string_view name) {
  auto it = std::find_if(commands.begin(), commands.end(),
                         [&](const Command& command) { return command.name == name; });
  return it == commands.end() ? nullptr : &*it;
}

}  // namespace dtrain::reference
