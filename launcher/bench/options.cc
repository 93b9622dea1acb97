// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/options.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/bench/flags.h"
#include "launcher/cli/flag_table.h"
#include "launcher/cli/words.h"

namespace dtrain::bench {
namespace {

using View = absl::string_view;

constexpr std::array<View, 3> kTools = {"allreduce", "p2p", "scaling"};

absl::StatusOr<Tool> FindTool(const std::vector<std::string>& args) {
  const std::string known = absl::StrJoin(kTools, ", ");
  if (args.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("bench: say what to measure: ", known));
  }
  for (size_t i = 0; i < kTools.size(); ++i) {
    if (args[0] == kTools[i]) return static_cast<Tool>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat("bench: unknown tool \"", Escape(args[0], 60),
                                                 "\"; known are ", known,
                                                 "\nSee dtrain bench --help"));
}

// Hands each flag to bench or on to launch. `words` as SplitWords gives them.
absl::Status Deal(const std::vector<std::string>& words, const std::vector<Flag>& own,
                  const std::vector<cli::Flag>& all, Options& options) {
  for (size_t i = 0; i < words.size(); ++i) {
    const View word = words[i];
    const size_t equals = std::min(word.find('='), word.size());
    const View name = word.substr(2, equals - 2);
    const int index = cli::FindLong(all, name);
    const bool takes_value = index >= 0 && !all[static_cast<size_t>(index)].value.empty();
    const std::string value(takes_value ? View(words[++i])
                                        : word.substr(std::min(equals + 1, word.size())));
    if (index >= 0 && static_cast<size_t>(index) < own.size()) {
      const absl::Status status = own[static_cast<size_t>(index)].set(value, options);
      if (!status.ok())
        return absl::InvalidArgumentError(absl::StrCat("--", name, ": ", status.message()));
      continue;
    }
    if (IsTaken(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--", name, " cannot be given to bench, which reads the workers' output itself"));
    }
    options.launch_flags.emplace_back(word);
    if (takes_value) options.launch_flags.push_back(value);
  }
  return absl::OkStatus();
}

absl::Status CheckCommand(const Options& options) {
  if (options.tool == Tool::kScaling) {
    if (options.counts.empty()) {
      return absl::InvalidArgumentError("give the numbers of ranks: --np -1,-2,4");
    }
    if (options.command.empty()) {
      return absl::InvalidArgumentError(
          "no command to run; write it last: dtrain bench scaling --np -1,-2 -- python train.py");
    }
    return absl::OkStatus();
  }
  if (options.command.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("unexpected \"", Escape(options.command[0], 60),
                                                 "\": this tool runs a worker of its own"));
}

absl::StatusOr<Options> ParseTool(Tool tool, const std::vector<std::string>& args) {
  Options options;
  options.tool = tool;
  const std::vector<Flag> own = FlagsOf(tool);
  std::vector<cli::Flag> all = ShownFlags(own);
  for (const cli::Flag& flag : cli::LaunchFlags()) {
    // Bench's own come first, so that its --np and --help count.
    all.push_back(flag);
  }
  absl::StatusOr<cli::Words> words = cli::SplitWords(all, args);
  if (!words.ok()) return words.status();
  for (const char* help : {"--help", "--help-all"}) {
    if (std::find(words->flags.begin(), words->flags.end(), help) == words->flags.end()) continue;
    options.help = cli::FormatHelp(PageOf(tool));
    return options;
  }
  if (absl::Status status = Deal(words->flags, own, all, options); !status.ok()) return status;
  options.command = std::move(words->command);
  if (absl::Status status = CheckCommand(options); !status.ok()) return status;
  options.sizes_are_default = options.sizes.empty();
  if (options.sizes_are_default) options.sizes = DefaultSizes();
  return options;
}

}  // namespace

std::vector<uint64_t> DefaultSizes() {
  constexpr uint64_t kResNet50 = 102'228'384;
  std::vector<uint64_t> sizes;
  for (uint64_t bytes = 4; bytes <= uint64_t{1} << 30; bytes *= 2) {
    if (bytes / 2 < kResNet50 && kResNet50 < bytes) sizes.push_back(kResNet50);
    sizes.push_back(bytes);
  }
  return sizes;
}

absl::StatusOr<Options> Parse(const std::vector<std::string>& args) {
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h" || args[0] == "help")) {
    Options options;
    options.help = cli::FormatHelp(GeneralPage());
    return options;
  }
  const absl::StatusOr<Tool> tool = FindTool(args);
  if (!tool.ok()) return tool.status();
  absl::StatusOr<Options> options =
      ParseTool(*tool, std::vector<std::string>(args.begin() + 1, args.end()));
  if (options.ok()) return options;
  return absl::InvalidArgumentError(absl::StrCat("bench ", args[0], ": ",
                                                 options.status().message(), "\nSee dtrain bench ",
                                                 args[0], " --help"));
}

}  // namespace dtrain::bench
