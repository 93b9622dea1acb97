// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "launcher/bench/bench.h"
#include "launcher/cli/flag_table.h"
#include "launcher/self/launches.h"

namespace dtrain::bench {
namespace {

using Words = std::vector<std::string>;

// Where hosts are: a run on this machine has no use for them, and launch would call them a mistake.
constexpr std::array<absl::string_view, 12> kHostFlags = {
    "hostfile", "hosts",  "rankfile", "nnodes",     "net",      "include",
    "ppn",      "map-by", "rsh",      "ssh-config", "ssh-port", "exclude"};

bool Names(const std::string& word, absl::string_view flag) {
  return word == absl::StrCat("--", flag);
}

bool TakesValue(const std::string& word) {
  if (word.rfind("--", 0) != 0) return false;
  const int index = cli::FindLong(cli::LaunchFlags(), absl::string_view(word).substr(2));
  return index >= 0 && !cli::LaunchFlags()[static_cast<size_t>(index)].value.empty();
}

Words WithoutHosts(const Words& flags) {
  Words kept;
  for (size_t i = 0; i < flags.size(); ++i) {
    const size_t words = TakesValue(flags[i]) ? 2 : 1;
    const bool drop = std::any_of(kHostFlags.begin(), kHostFlags.end(),
                                  [&](absl::string_view flag) { return Names(flags[i], flag); });
    for (size_t k = i; !drop && k < i + words && k < flags.size(); ++k) kept.push_back(flags[k]);
    i += words - 1;
  }
  return kept;
}

Words Build(Words flags, const char* tag, const Words& command) {
  Words words = {"launch"};
  words.insert(words.end(), flags.begin(), flags.end());
  for (const char* word :
       {"--tag-output", tag, "--timestamps=false", "--show-ranks", "all", "--stdin", "none"}) {
    words.emplace_back(word);
  }
  words.emplace_back("--result-json");
  words.push_back(absl::StrCat("/dev/fd/", self::kResultFd));
  words.emplace_back("--");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

bool HasFlag(const Words& flags, absl::Span<const absl::string_view> wanted) {
  for (size_t i = 0; i < flags.size(); i += TakesValue(flags[i]) ? 2 : 1) {
    for (absl::string_view flag : wanted) {
      if (Names(flags[i], flag)) return true;
    }
  }
  return false;
}

Words FlagsAt(const Options& options, RankCount count) {
  Words flags = count.local ? WithoutHosts(options.launch_flags) : options.launch_flags;
  flags.emplace_back("--np");
  flags.push_back(absl::StrCat(count.local ? "-" : "", count.ranks));
  return flags;
}

}  // namespace

bool GoesElsewhere(const Options& options) {
  // A copy of files of the user's, or a folder that the job is to run in.
  return HasFlag(options.launch_flags, {"hosts", "hostfile", "rankfile"}) &&
         !HasFlag(options.launch_flags, {"stage", "verify-code", "wdir"});
}

std::vector<std::string> WorkerLaunch(const Options& options, const std::string& worker,
                                      const std::string& stage) {
  Words flags = options.launch_flags;
  if (!stage.empty()) flags.insert(flags.end(), {"--stage", stage, "--stage-quiet"});
  Words command = {worker, "--json"};
  if (options.tool == Tool::kPairs) {
    if (!HasFlag(flags, {"np", "ppn", "map-by", "rankfile"}))
      flags.insert(flags.end(), {"--ppn", "1"});
    command.insert(command.end(), {"--collective", "p2p"});
    return Build(std::move(flags), "none", command);
  }
  command.insert(command.end(), {"--sizes", absl::StrJoin(options.sizes, ","), "--collective",
                                 options.collective, "--type", options.type, "--op", options.op});
  if (options.sizes_are_default) command.push_back("--fit");
  if (options.pipelined) {
    command.push_back(absl::StrCat("--pipelined=", *options.pipelined ? "on" : "off"));
  }
  if (options.iterations) {
    command.insert(command.end(), {"--iterations", absl::StrCat(*options.iterations)});
  }
  return Build(std::move(flags), "none", command);
}

std::vector<std::string> ScalingLaunch(const Options& options, RankCount count) {
  return Build(FlagsAt(options, count), "rank", options.command);
}

std::vector<std::string> PredictionLaunch(const Options& options, RankCount count,
                                          const std::string& worker, double bytes,
                                          const std::string& stage) {
  Words flags = FlagsAt(options, count);
  if (!stage.empty()) flags.insert(flags.end(), {"--stage", stage, "--stage-quiet"});
  // Whole float32 elements.
  const uint64_t size = (static_cast<uint64_t>(bytes) + 3) / 4 * 4;
  return Build(std::move(flags), "none",
               {worker, "--json", "--pipelined=off", "--sizes", absl::StrCat(size)});
}

}  // namespace dtrain::bench
