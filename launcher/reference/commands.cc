// SPDX-License-Identifier: Apache-2.0
#include "launcher/reference/commands.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "launcher/bench/flags.h"
#include "launcher/cli/help.h"
#include "launcher/env/env.h"
#include "launcher/faces/face.h"
#include "launcher/status/command_options.h"

namespace dtrain::reference {
namespace {

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

cli::Page VersionPage() {
  cli::Page page;
  page.command = "dtrain version";
  page.text = "Prints the version.\n";
  page.usage = "dtrain version [--verbose]";
  page.flags = {{"--verbose,-v", "Flags", "",
                 "also print the build, the libraries inside, and the libssh and agent in use",
                 nullptr}};
  return page;
}

void Add(cli::Page page, absl::string_view summary, std::vector<Command>& commands) {
  Command command;
  const absl::string_view name = absl::StripPrefix(page.command, "dtrain");
  command.name = std::string(absl::StripPrefix(name, " "));
  command.summary = std::string(summary);
  command.accepts = page.flags;
  command.page = std::move(page);
  commands.push_back(std::move(command));
}

cli::Page PageOf(const std::string& word) {
  if (word == "launch") return cli::LaunchPage();
  if (word == "bench") return bench::GeneralPage();
  if (word == "completion") return CompletionPage();
  if (word == "man") return ManPage();
  if (word == "version") return VersionPage();
  if (word == "env") return env::EnvPage();
  if (const faces::Face* face = faces::Find(word); face != nullptr) return faces::PageOf(*face);
  return status::PageOf(word);
}

void AddBenchTools(std::vector<Command>& commands) {
  const std::vector<cli::Page::Entry> tools = bench::GeneralPage().list;
  for (size_t i = 0; i < tools.size(); ++i) {
    Add(bench::PageOf(static_cast<bench::Tool>(i)), tools[i].summary, commands);
    std::vector<cli::Flag>& accepts = commands.back().accepts;
    const std::vector<cli::Flag> own = accepts;
    for (const cli::Flag& flag : cli::LaunchFlags()) {
      const absl::string_view name = cli::FlagName(flag);
      if (!bench::IsTaken(name) && cli::FindLong(own, name) < 0) accepts.push_back(flag);
    }
  }
}

}  // namespace

std::string ManPageName(const Command& command) {
  return absl::StrReplaceAll(command.page.command, {{" ", "-"}});
}

std::vector<Command> Commands() {
  std::vector<Command> commands;
  const cli::Page general = cli::GeneralPage();
  Add(general, "run a program on many machines as one job", commands);
  commands[0].accepts = {HelpFlag(), {"--version,-V", "Flags", "", "print the version", nullptr}};
  for (const cli::Page::Entry& entry : general.list) {
    Add(PageOf(entry.word), entry.summary, commands);
    if (entry.word == "bench") AddBenchTools(commands);
  }
  std::vector<cli::Page::Entry> pages;
  for (const Command& command : commands) {
    pages.push_back({ManPageName(command), command.summary});
  }
  for (Command& command : commands) {
    if (command.name == "man") command.page.list = pages;
    if (command.name == "man") command.page.list_title = "Pages";
  }
  return commands;
}

const Command* Find(const std::vector<Command>& commands, absl::string_view name) {
  auto it = std::find_if(commands.begin(), commands.end(),
                         [&](const Command& command) { return command.name == name; });
  return it == commands.end() ? nullptr : &*it;
}

}  // namespace dtrain::reference
