// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/forwarded_env.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/env_names.h"
#include "common/base/text.h"
#include "launcher/cli/flag_table.h"

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

namespace {

using Variables = std::map<std::string, std::string>;

// A flag of this launch, given as a variable, is not one of a launch that a worker may start.
const std::set<std::string>& FlagVariables() {
  static const std::set<std::string>* names = [] {
    auto* all = new std::set<std::string>{"DTRAIN_CONFIG"};
    for (const Flag& flag : LaunchFlags()) all->insert(FlagVariable(FlagName(flag)));
    return all;
  }();
  return *names;
}

bool IsForwarded(const std::string& name) {
  return IsPlainName(name) && !IsHostBound(name) && !IsScrubbed(name) &&
         FlagVariables().count(name) == 0;
}

absl::Status CheckName(absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("-x: the name is empty; give NAME=VALUE");
  if (IsPlainName(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("-x: \"", Escape(name, 60), "\" is not a name a variable can have"));
}

absl::Status Export(const std::string& text, const Variables& ours, Variables& out,
                    std::set<std::string>& names) {
  size_t equals = text.find('=');
  std::string name = text.substr(0, equals);
  if (absl::Status status = CheckName(name); !status.ok()) return status;
  if (equals != std::string::npos) {
    out[name] = text.substr(equals + 1);
  } else {
    auto it = ours.find(name);
    if (it == ours.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("-x ", Escape(name, 60), ": this variable is not set here; set it or give ",
                       Escape(name, 60), "=VALUE"));
    }
    out[name] = it->second;
  }
  names.insert(name);
  return absl::OkStatus();
}

absl::Status CheckSize(const Variables& variables, size_t argv_bytes) {
  size_t total = argv_bytes;
  const std::string* biggest = nullptr;
  size_t biggest_bytes = 0;
  for (const auto& [name, value] : variables) {
    size_t bytes = name.size() + value.size() + 2;  // '=' and NUL
    if (bytes > kMaxVariableBytes) {
      return absl::InvalidArgumentError(absl::StrCat("the environment variable ", Escape(name, 60),
                                                     " has ", bytes, " bytes; Linux takes at most ",
                                                     kMaxVariableBytes,
                                                     " a variable. Put it in a file, or unset it"));
    }
    total += bytes + sizeof(char*);
    if (bytes > biggest_bytes) {
      biggest = &name;
      biggest_bytes = bytes;
    }
  }
  if (total <= kMaxEnvironmentBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "environment and command together have ", total, " bytes in ",
      Count(variables.size(), "variable"), "; at most ", kMaxEnvironmentBytes, " can be given",
      biggest == nullptr
          ? ""
          : absl::StrCat(". The biggest is ", Escape(*biggest, 60), " (", biggest_bytes, ")"),
      ". Unset some, or use --env none and -x"));
}

}  // namespace

// One that is not UTF-8 would spoil the whole message.
bool IsPlainName(absl::string_view name) {
  return !name.empty() && name.size() <= 256 &&
         std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isgraph(c); });
}

std::string FlagVariable(absl::string_view flag) {
  std::string name = absl::StrCat("DTRAIN_", absl::AsciiStrToUpper(flag));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

absl::StatusOr<ForwardedEnv> BuildForwardedEnv(const std::vector<std::string>& environment,
                                               const ForwardOptions& options) {
  Variables ours;
  for (const std::string& entry : environment) {
    size_t equals = entry.find('=');
    // Without a name there is nothing a worker could look up; the first of a name is what getenv
    // finds.
    if (equals == std::string::npos || equals == 0) continue;
    ours.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  Variables out;
  if (options.all) {
    for (const auto& [name, value] : ours) {
      if (IsForwarded(name)) out.emplace(name, value);
    }
  }
  std::set<std::string> names;
  for (const std::string& text : options.exports) {
    if (absl::Status status = Export(text, ours, out, names); !status.ok()) return status;
  }
  if (absl::Status status = CheckSize(out, options.argv_bytes); !status.ok()) return status;
  ForwardedEnv result;
  for (auto& [name, value] : out) {
    v1::EnvVar& variable = result.variables.emplace_back();
    variable.set_name(name);
    variable.set_value(std::move(value));
  }
  result.explicit_names.assign(names.begin(), names.end());
  return result;
}

}  // namespace dtrain::cli
