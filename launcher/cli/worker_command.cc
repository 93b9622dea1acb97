// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/worker_command.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/os/find_program.h"

namespace dtrain::cli {
namespace {

// Whether execvp would start it here, by the interpreter of its first line. A file that is not here
// may be on the nodes; only its name is known.
bool RunsByItself(const std::string& word, const std::string& directory,
                  const Surroundings& surroundings) {
  if (!surroundings.is_script) return false;
  if (absl::StrContains(word, '/')) return surroundings.is_script(os::Joined(directory, word));
  const auto path = FindVariable(surroundings, "PATH");
  if (!path) return false;
  const std::vector<absl::string_view> places = absl::StrSplit(*path, ':');
  return std::any_of(places.begin(), places.end(), [&](absl::string_view place) {
    return surroundings.is_script(os::Joined(os::Joined(directory, place), word));
  });
}

}  // namespace

std::vector<std::string> WorkerCommand(std::vector<std::string> words, bool module,
                                       const std::string& directory,
                                       const Surroundings& surroundings) {
  if (words.empty()) return words;
  const bool script = !module && absl::EndsWith(words[0], ".py");
  if (!module && (!script || RunsByItself(words[0], directory, surroundings))) return words;
  // Python would take it for an option.
  if (script && words[0][0] == '-') words[0].insert(0, "./");
  const std::string chosen(FindVariable(surroundings, "PYTHON_EXEC").value_or(""));
  std::vector<std::string> command = {chosen.empty() ? "python3" : chosen, "-u"};
  if (module) command.push_back("-m");
  std::move(words.begin(), words.end(), std::back_inserter(command));
  return command;
}

}  // namespace dtrain::cli
