// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/mistyped.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"

namespace dtrain::cli {
namespace {

// U+2010 to U+2015 and the minus sign: editors and chat programs put them in the place of dashes.
constexpr std::array<absl::string_view, 7> kOtherDashes = {"\u2010", "\u2011", "\u2012", "\u2013",
                                                           "\u2014", "\u2015", "\u2212"};

// Of dtrain, and seldom a program's own.
constexpr std::array<absl::string_view, 10> kOurs = {
    "-np",     "--np",           "-H",          "--hosts", "--hostfile", "--ppn",
    "--grace", "--max-restarts", "--min-nodes", "--spare"};

// "-np" for "–np"; empty: it begins with a dash, or with none.
std::string WithDashes(absl::string_view word) {
  std::string dashes;
  bool other = false;
  while (true) {
    const auto dash = std::find_if(kOtherDashes.begin(), kOtherDashes.end(),
                                   [&](auto each) { return absl::StartsWith(word, each); });
    if (dash != kOtherDashes.end()) {
      // Two dashes in a row become one long one.
      dashes += *dash == "\u2014" || *dash == "\u2015" ? "--" : "-";
      word.remove_prefix(dash->size());
      other = true;
    } else if (!absl::ConsumePrefix(&word, "-")) {
      break;
    } else {
      dashes += "-";
    }
  }
  return other ? absl::StrCat(dashes, word) : "";
}

// It takes such flags itself.
bool IsLauncher(absl::string_view program) {
  static constexpr std::array<absl::string_view, 9> kLaunchers = {
      "mpirun",     "mpiexec", "horovodrun", "torchrun", "deepspeed",
      "accelerate", "srun",    "dtrain",     "fabric"};
  program.remove_prefix(std::min(program.size(), program.rfind('/') + 1));
  return std::find(kLaunchers.begin(), kLaunchers.end(), program) != kLaunchers.end();
}

}  // namespace

absl::Status CheckMistyped(const Words& words, std::string* warning) {
  warning->clear();
  if (words.apart || words.command.empty()) return absl::OkStatus();
  const std::string& program = words.command.front();
  if (const std::string meant = WithDashes(program); !meant.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", program, "\" begins with a character that only looks like a dash: type ",
                     Escape(meant)));
  }
  if (IsLauncher(program)) return absl::OkStatus();
  for (auto word = words.command.begin() + 1; word != words.command.end(); ++word) {
    // All that follows is somebody's data.
    if (*word == "--") break;
    const absl::string_view name = absl::string_view(*word).substr(0, word->find('='));
    if (name == "--dry-run") {
      return absl::InvalidArgumentError(absl::StrCat(
          "--dry-run stands behind the command, so the job would run. To see the plan only, write "
          "dtrain launch --dry-run ... ",
          Escape(program),
          "; if the flag is the program's, write -- before the command: dtrain "
          "launch ... -- ",
          Escape(absl::StrJoin(words.command, " "), 200)));
    }
    if (warning->empty() && std::find(kOurs.begin(), kOurs.end(), name) != kOurs.end()) {
      *warning = absl::StrCat(name, " stands behind the command, so ", Escape(program),
                              " gets it; flags of dtrain stand before the command (-- before the "
                              "command silences this)");
    }
  }
  return absl::OkStatus();
}

}  // namespace dtrain::cli
