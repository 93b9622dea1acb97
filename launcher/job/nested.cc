// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/nested.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace dtrain::job {
namespace {

using Words = std::vector<absl::string_view>;

// The command as its user thinks of it: without the interpreter and its flags, and without folders.
Words Command(const v1::Program& program) {
  Words words(program.argv().begin(), program.argv().end());
  const auto without_folder = [](absl::string_view path) {
    return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  };
  size_t first = 0;
  if (!words.empty() && absl::StartsWith(without_folder(words[0]), "python")) {
    for (first = 1; first < words.size() && absl::StartsWith(words[first], "-"); ++first) {
      if (words[first] == "-m") {
        ++first;
        break;
      }
    }
  }
  words.erase(words.begin(), words.begin() + static_cast<ptrdiff_t>(std::min(first, words.size())));
  if (!words.empty()) words[0] = without_folder(words[0]);
  return words;
}

// The value of a flag, which PyTorch's launchers write with '-' or '_'; empty: not given. What
// stands after the script is the script's.
std::optional<std::string> Flag(const Words& words, absl::string_view name) {
  for (size_t i = 1; i < words.size() && !absl::EndsWith(words[i], ".py"); ++i) {
    if (!absl::StartsWith(words[i], "--")) continue;
    const size_t equals = words[i].find('=');
    const std::string given = absl::StrReplaceAll(words[i].substr(2, equals - 2), {{"_", "-"}});
    if (given != name) continue;
    if (equals != absl::string_view::npos) return std::string(words[i].substr(equals + 1));
    return i + 1 < words.size() ? std::string(words[i + 1]) : std::string();
  }
  return std::nullopt;
}

bool HasAny(const Words& words, std::initializer_list<absl::string_view> flags) {
  return std::any_of(flags.begin(), flags.end(),
                     [&words](absl::string_view flag) { return Flag(words, flag).has_value(); });
}

}  // namespace

std::optional<NestedLauncher> NestedIn(const v1::Program& program) {
  const Words words = Command(program);
  if (words.empty()) return std::nullopt;
  const absl::string_view name = words[0];
  if (name == "torchrun" || name == "torch.distributed.run" || name == "torch.distributed.launch") {
    if (HasAny(words, {"rdzv-endpoint", "node-rank", "master-addr"})) return std::nullopt;
    return NestedLauncher{"torchrun", "torchrun", !HasAny(words, {"nnodes", "standalone"})};
  }
  const bool launches = words.size() > 1 && words[1] == "launch";
  if ((name == "accelerate" && launches) || name == "accelerate.commands.launch") {
    // Else it executes the script, in place of the rank.
    if (!HasAny(words, {"num-processes", "num-machines", "multi-gpu"})) return std::nullopt;
    if (HasAny(words, {"machine-rank"})) return std::nullopt;
    return NestedLauncher{"accelerate launch", "accelerate launch"};
  }
  for (const absl::string_view known : {"mpirun", "mpiexec", "horovodrun", "deepspeed"}) {
    if (name == known) return NestedLauncher{std::string(known), std::string(known)};
  }
  if (name == "mpiexec.hydra" || name == "mpirun.openmpi" || name == "orterun") {
    return NestedLauncher{std::string(name), "mpirun"};
  }
  return std::nullopt;
}

}  // namespace dtrain::job
