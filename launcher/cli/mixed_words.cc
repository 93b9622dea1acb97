// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/mixed_words.h"

#include <utility>

#include "launcher/cli/words.h"

namespace dtrain::cli {

absl::StatusOr<MixedWords> SplitMixed(const std::vector<Flag>& flags,
                                      std::vector<std::string> args) {
  MixedWords mixed;
  while (!args.empty()) {
    absl::StatusOr<Words> words = SplitWords(flags, args);
    if (!words.ok()) return words.status();
    absl::StatusOr<std::vector<Given>> given = ParseFlags(flags, words->flags);
    if (!given.ok()) return given.status();
    for (Given& one : *given) mixed.flags.push_back(std::move(one));
    args = std::move(words->command);
    if (args.empty()) break;
    mixed.operands.push_back(std::move(args[0]));
    args.erase(args.begin());
  }
  return mixed;
}

}  // namespace dtrain::cli
