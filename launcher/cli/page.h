// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "launcher/cli/flag_table.h"

namespace dtrain::cli {

// What is to be known of a command. Its --help, its manual page and its completion are made of it.
// Texts are lines of at most 100 columns that end in \n; those that begin with a blank keep their
// shape, the others are paragraphs with an empty line between them.
struct Page {
  // What may stand behind the flags.
  enum class Operand { kNone, kListed, kJob, kProgram };
  // One of `list`, as it is explained.
  struct Entry {
    std::string word;
    std::string summary;
  };

  std::string command;  // as it is typed: "dtrain bench p2p"
  std::string text;     // what it does
  std::string usage;    // one line, no \n
  std::string more;     // on how it is used
  std::string list_title;
  std::vector<Entry> list;  // words that it takes: its commands, say
  std::string examples;     // each line begins with two blanks
  std::vector<Flag> flags;
  std::string notes;
  Operand operand = Operand::kNone;
};

// As --help prints it.
std::string FormatHelp(const Page& page);

}  // namespace dtrain::cli
