// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/env_file.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"
#include "launcher/cli/forwarded_env.h"

namespace dtrain::cli {
namespace {

// What is wrong with the name of a variable; empty: nothing.
absl::string_view FaultOf(absl::string_view name) {
  if (name.empty()) return "no name before the =";
  if (name.find_first_of(" \t") != absl::string_view::npos) {
    return "blanks in the name of a variable; write NAME=VALUE, without \"export\" and without "
           "blanks around the =";
  }
  return IsPlainName(name) ? "" : "not a name that a variable can have; write NAME=VALUE";
}

absl::Status AddVariables(absl::string_view text, absl::string_view path,
                          const Surroundings& surroundings, std::vector<std::string>& variables) {
  absl::ConsumePrefix(&text, "\xEF\xBB\xBF");
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    absl::ConsumeSuffix(&line, "\r");
    line = absl::StripLeadingAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find('=');
    const absl::string_view name = line.substr(0, equals);
    if (const absl::string_view fault = FaultOf(name); !fault.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--env-file: ", Escape(path), ":", number, ": ", fault));
    }
    if (equals != absl::string_view::npos) {
      variables.emplace_back(line);
    } else if (const auto own = FindVariable(surroundings, name)) {
      variables.push_back(absl::StrCat(name, "=", *own));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadEnvFiles(const std::vector<std::string>& paths,
                                                      const Surroundings& surroundings) {
  std::vector<std::string> variables;
  for (const std::string& path : paths) {
    absl::StatusOr<std::string> text = surroundings.read(path);
    if (!text.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--env-file: ", text.status().message()));
    }
    absl::Status added = AddVariables(*text, path, surroundings, variables);
    if (!added.ok()) return added;
  }
  return variables;
}

}  // namespace dtrain::cli
