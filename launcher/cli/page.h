// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "launcher/cli/flag_table.h"

namespace dtrain::cli {

// What is to be known of a command. Its --help, its manual page and its completion are made of it.
// Texts are lines of at most 100 columns that end in \n; those that begin with a blank keep their
// shape, the others are paragraphs with an empty line between them.
struct Page {
  // What may stand behind the flags.
  enum class Operand { kNone, kListed, kJob, kProgram };
  // A row of `list`. Help puts the rows of a group below its title; without one, below list_title.
  struct Entry {
    std::string word;
    std::string summary;
    std::string group = {};
  };

  std::string command;  // as it is typed: "dtrain bench p2p"
  std::string text;     // what it does
  std::string usage;    // one line, no \n
  std::string more;     // on how it is used
  std::string list_title;
  std::vector<Entry> list;  // words that it takes: its commands, say
  std::string examples;     // each line begins with two blanks
  std::vector<Flag> flags;
  // Names of the flags that --help prints if `flags` do not fit on a screen; --help-all prints all.
  std::vector<absl::string_view> common;
  std::string notes;
  Operand operand = Operand::kNone;
};

// The text of --help, or of --help-all.
std::string FormatHelp(const Page& page, bool all_flags = false);

}  // namespace dtrain::cli
