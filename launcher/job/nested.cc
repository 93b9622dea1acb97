// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/nested.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

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

// Whether one of these flags is given, which PyTorch's launchers write with '-' or '_'. What stands
// after the script is the script's.
bool HasAny(const Words& words, std::initializer_list<absl::string_view> flags) {
  for (size_t i = 1; i < words.size() && !absl::EndsWith(words[i], ".py"); ++i) {
    absl::string_view word = words[i];
    if (!absl::ConsumePrefix(&word, "--")) continue;
    const absl::string_view name = word.substr(0, word.find('='));
    const std::string given = absl::StrReplaceAll(name, {{"_", "-"}});
    if (std::find(flags.begin(), flags.end(), given) != flags.end()) return true;
  }
  return false;
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
  if (name == "fabric" && words.size() > 1 && words[1] == "run") {
    if (HasAny(words, {"node-rank", "main-address"})) return std::nullopt;
    return NestedLauncher{"fabric run", "fabric run"};
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
