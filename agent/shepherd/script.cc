// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/script.h"

#include <dirent.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/os/find_program.h"

namespace dtrain::shepherd {
namespace {

// Command lines of interpreters whose scripts are files, by that name and no other. A word of
// `flags` has letters of it only; one of `values` takes the next word, if nothing follows in its
// own. Whatever else begins with a dash ends the search.
struct Interpreter {
  absl::string_view name;  // with any version behind it
  absl::string_view flags;
  absl::string_view values;
  bool in_path;
};

constexpr Interpreter kInterpreters[] = {
    {"python", "bBdEhiIOPqRsSuvVx", "WX", false},
    {"pypy", "bBdEhiIOPqRsSuvVx", "WX", false},
    {"bash", "abefhilmnprtuvxBCEHPT", "oO", true},
    {"dash", "aefilnuvx", "o", true},
    {"zsh", "efilnuvx", "o", true},
    {"ksh", "aefilnuvx", "o", true},
    {"sh", "aefilnuvx", "o", true},
    {"perl", "", "", false},
    {"ruby", "", "", false},
    {"julia", "", "", false},
    {"Rscript", "", "", false},
};

const Interpreter* Find(absl::string_view program) {
  absl::string_view name = program.substr(program.rfind('/') + 1);
  while (!name.empty() &&
         (absl::ascii_isdigit(static_cast<unsigned char>(name.back())) || name.back() == '.')) {
    name.remove_suffix(1);
  }
  for (const Interpreter& each : kInterpreters) {
    if (name == each.name) return &each;
  }
  return nullptr;
}

bool AllOf(absl::string_view letters, absl::string_view known) {
  return letters.find_first_not_of(known) == absl::string_view::npos;
}

// False: it is there, or that cannot be told.
bool IsNowhere(const std::string& file) {
  if (access(file.c_str(), F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR)) return false;
  // What an NFS client remembers of a file that was not there, it forgets when the folder is
  // opened.
  const size_t slash = file.rfind('/');
  if (DIR* folder = opendir(slash == std::string::npos ? "." : file.substr(0, slash + 1).c_str())) {
    closedir(folder);
  }
  return access(file.c_str(), F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

}  // namespace

std::optional<Script> ScriptOf(const v1::Program& program) {
  if (program.argv_size() < 2) return std::nullopt;
  const Interpreter* const interpreter = Find(program.argv(0));
  if (interpreter == nullptr) return std::nullopt;
  for (int i = 1; i < program.argv_size(); ++i) {
    const absl::string_view word = program.argv(i);
    if (word.empty() || word == "-") return std::nullopt;  // its standard input
    if (word[0] != '-') return Script{std::string(word), interpreter->in_path};
    const absl::string_view letters = word.substr(1);
    if (!interpreter->flags.empty() && AllOf(letters, interpreter->flags)) continue;
    if (!absl::StrContains(interpreter->values, letters[0])) return std::nullopt;
    if (letters.size() == 1) ++i;
  }
  return std::nullopt;
}

bool IsMissing(const Script& script, const std::string& working_directory, absl::string_view path) {
  // The folder itself is looked at by others.
  if (access(absl::StrCat(working_directory, "/.").c_str(), X_OK) != 0) return false;
  if (!IsNowhere(os::Joined(working_directory, script.path))) return false;
  if (!script.in_path || absl::StrContains(script.path, '/')) return true;
  for (const absl::string_view folder : absl::StrSplit(path, ':')) {
    if (!IsNowhere(os::Joined(working_directory, absl::StrCat(folder, "/", script.path)))) {
      return false;
    }
  }
  return true;
}

}  // namespace dtrain::shepherd
