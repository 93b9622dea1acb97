// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace dtrain::stage {

// Patterns with the meaning that .gitignore gives them. Pure.
class IgnoreRules {
 public:
  // The lines of such a file.
  void AddLines(absl::string_view text);
  void Add(absl::string_view line);
  bool empty() const { return rules_.empty(); }
  // Whether the file `path`, or a folder that it lies in, is matched; the last rule that matches
  // counts.
  bool Matches(absl::string_view path) const;
  // The same of a folder, where the folders that it lies in are not.
  bool MatchesFolder(absl::string_view path) const { return Judge(path, /*is_folder=*/true); }

 private:
  struct Rule {
    std::vector<std::string> names;  // between its slashes; "**" stands for any number
    bool anywhere = false;           // it is about a name, in whatever folder
    bool only_folders = false;
    bool takes_back = false;  // "!"
  };
  bool Judge(absl::string_view path, bool is_folder) const;

  std::vector<Rule> rules_;
};

}  // namespace dtrain::stage
