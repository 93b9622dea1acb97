// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/recorded.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "launcher/cli/flag_table.h"
#include "launcher/cli/forwarded_env.h"

namespace dtrain::cli {
namespace {

v1::SourceFile* FindFile(v1::Spec& spec, const std::string& path, bool is_script) {
  for (v1::SourceFile& file : *spec.mutable_files()) {
    if (file.path() == path && file.asked_for_script() == is_script) return &file;
  }
  return nullptr;
}

}  // namespace

Surroundings RecordInto(v1::Spec& spec, Surroundings real) {
  Surroundings recording = real;
  spec.set_working_directory(real.working_directory);
  recording.read = [&spec, read = std::move(real.read)](const std::string& path) {
    auto text = read(path);
    if (FindFile(spec, path, false) != nullptr) return text;
    v1::SourceFile& file = *spec.add_files();
    file.set_path(path);
    if (text.ok()) {
      file.set_text(*text);
    } else {
      file.set_status_code(static_cast<int>(text.status().code()));
      file.set_status_message(std::string(text.status().message()));
    }
    return text;
  };
  if (real.is_script == nullptr) return recording;
  recording.is_script = [&spec, is_script = std::move(real.is_script)](const std::string& path) {
    const bool is = is_script(path);
    if (FindFile(spec, path, true) != nullptr) return is;
    v1::SourceFile& file = *spec.add_files();
    file.set_path(path);
    file.set_asked_for_script(true);
    file.set_is_script(is);
    return is;
  };
  return recording;
}

std::vector<std::string> FlagVariableNames() {
  std::vector<std::string> names = {"DTRAIN_CONFIG"};
  for (const Flag& flag : LaunchFlags()) names.push_back(FlagVariable(FlagName(flag)));
  return names;
}

void RecordFlagVariables(const std::vector<std::string>& environment, v1::Spec& spec) {
  const std::vector<std::string> names = FlagVariableNames();
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals + 1 == entry.size()) continue;  // empty: not given
    const std::string name = entry.substr(0, equals);
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    v1::EnvVar& variable = *spec.add_flag_variables();
    variable.set_name(name);
    variable.set_value(entry.substr(equals + 1));
  }
}

std::vector<std::string> WithFlagVariablesOf(const v1::Spec& spec,
                                             std::vector<std::string> environment) {
  const std::vector<std::string> names = FlagVariableNames();
  std::erase_if(environment, [&names](const std::string& entry) {
    return std::find(names.begin(), names.end(), entry.substr(0, entry.find('='))) != names.end();
  });
  for (const v1::EnvVar& variable : spec.flag_variables()) {
    environment.push_back(absl::StrCat(variable.name(), "=", variable.value()));
  }
  return environment;
}

Surroundings SurroundingsOf(const v1::Spec& spec) {
  Surroundings then;
  for (const v1::EnvVar& variable : spec.environment()) {
    then.environment.push_back(absl::StrCat(variable.name(), "=", variable.value()));
  }
  then.working_directory = spec.working_directory();
  then.read = [&spec](const std::string& path) -> absl::StatusOr<std::string> {
    for (const v1::SourceFile& file : spec.files()) {
      if (file.path() != path || file.asked_for_script()) continue;
      if (file.status_code() == 0) return std::string(file.text());
      return absl::Status(static_cast<absl::StatusCode>(file.status_code()), file.status_message());
    }
    return absl::NotFoundError(absl::StrCat(path, " was not read when the job was launched"));
  };
  then.is_script = [&spec](const std::string& path) {
    for (const v1::SourceFile& file : spec.files()) {
      if (file.path() == path && file.asked_for_script()) return file.is_script();
    }
    return false;
  };
  return then;
}

}  // namespace dtrain::cli
