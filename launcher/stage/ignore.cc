// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/ignore.h"

#include <fnmatch.h>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"

namespace dtrain::stage {
namespace {

using Names = absl::Span<const std::string>;
using Parts = absl::Span<const absl::string_view>;

bool NameMatches(const std::string& pattern, absl::string_view name) {
  return fnmatch(pattern.c_str(), std::string(name).c_str(), 0) == 0;
}

bool PathMatches(Names pattern, Parts path) {
  if (pattern.empty()) return path.empty();
  if (pattern[0] != "**") {
    return !path.empty() && NameMatches(pattern[0], path[0]) &&
           PathMatches(pattern.subspan(1), path.subspan(1));
  }
  // At the end it stands for what is in a folder, not for the folder.
  if (pattern.size() == 1) return !path.empty();
  while (pattern.size() > 1 && pattern[1] == "**") pattern.remove_prefix(1);
  for (size_t skip = 0; skip <= path.size(); ++skip) {
    if (PathMatches(pattern.subspan(1), path.subspan(skip))) return true;
  }
  return false;
}

}  // namespace

void IgnoreRules::AddLines(absl::string_view text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) Add(line);
}

void IgnoreRules::Add(absl::string_view line) {
  absl::ConsumeSuffix(&line, "\r");
  while (!line.empty() && line.back() == ' ' &&
         !(line.size() > 1 && line[line.size() - 2] == '\\')) {
    line.remove_suffix(1);
  }
  if (line.empty() || line[0] == '#') return;
  Rule rule;
  rule.takes_back = absl::ConsumePrefix(&line, "!");
  rule.only_folders = absl::ConsumeSuffix(&line, "/");
  rule.anywhere = line.find('/') == line.npos;
  absl::ConsumePrefix(&line, "/");
  if (line.empty()) return;
  rule.names = absl::StrSplit(line, '/');
  rules_.push_back(std::move(rule));
}

bool IgnoreRules::Matches(absl::string_view path) const {
  if (rules_.empty()) return false;
  for (size_t at = path.find('/'); at != path.npos; at = path.find('/', at + 1)) {
    if (Judge(path.substr(0, at), /*is_folder=*/true)) return true;
  }
  return Judge(path, /*is_folder=*/false);
}

bool IgnoreRules::Judge(absl::string_view path, bool is_folder) const {
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  for (auto rule = rules_.rbegin(); rule != rules_.rend(); ++rule) {
    if (rule->only_folders && !is_folder) continue;
    const bool matches = rule->anywhere ? NameMatches(rule->names[0], parts.back())
                                        : PathMatches(rule->names, parts);
    if (matches) return !rule->takes_back;
  }
  return false;
}

}  // namespace dtrain::stage
