// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "launcher/cli/page.h"
#include "launcher/reference/commands.h"

namespace dtrain::reference {

// What may stand in the place of the word that is being typed.
struct Completion {
  enum class Kind {
    kWords,        // one of `words`
    kFiles,        // a path, behind the "--hostfile=" that the word may begin with
    kDirectories,  // likewise
    kProgram,      // it belongs to a command of its own, which begins at the word `program`
  };
  Kind kind = Kind::kWords;
  std::vector<cli::Page::Entry> words;
  size_t program = 0;  // an index into all words, 0: dtrain
};

// `typed`: the words after `dtrain`; the last is the one that is being typed, maybe empty. `jobs`:
// ids of those that run. Pure.
Completion Complete(const std::vector<Command>& commands, const std::vector<std::string>& typed,
                    const std::vector<std::string>& jobs);

// For the shells' scripts to read: "words", "files", "directories" or "program N", and below it a
// line for each word: the word, a tab, and what it is.
std::string FormatCompletion(const Completion& completion);

}  // namespace dtrain::reference
