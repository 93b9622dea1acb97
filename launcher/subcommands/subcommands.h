// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/cli/options.h"
#include "launcher/cli/page.h"
#include "launcher/faces/translation.h"
#include "launcher/reference/commands.h"
#include "launcher/reference/man.h"

// What `dtrain WORD` can be. This is the one place that knows: help, completion, manual pages and
// the suggestion for a mistyped word are made from the same entries. To add a command, add one.
namespace dtrain::subcommands {

// What commands need of the program that they are part of.
struct Program {
  reference::Release release;
  // Carries out a launch. `translation`: of another launcher's command line; null: it was our own,
  // of which `read` has what was read.
  int (*launch)(cli::LaunchOptions options, const faces::Translation* translation,
                std::unique_ptr<v1::Spec> read);
  int (*launcher)(const std::vector<std::string>& args);
};

struct Subcommand {
  absl::string_view name;
  absl::string_view group;  // of dtrain --help, which leaves out commands without one
  absl::string_view summary;
  cli::Page (*page)(absl::string_view name);
  // `args` begin with the name. Prints to stdout and stderr and returns the exit code.
  int (*run)(const Program& program, const std::vector<std::string>& args);
};

// All of them, as the help lists them.
absl::Span<const Subcommand> All();

// dtrain itself, all of them, and the tools that they have.
std::vector<reference::Command> Reference();

// Runs the one that `args`, without the program's name, begin with. Returns the exit code.
int Run(const Program& program, const std::vector<std::string>& args);

}  // namespace dtrain::subcommands
