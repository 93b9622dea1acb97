// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

// Configuration files of other launchers. Pure: text in, values out. Errors are InvalidArgument,
// fit for a terminal, and begin with `name`, which is usually the file's path.
namespace dtrain::faces {

// Keeps the order of keys.
using Value = nlohmann::ordered_json;

inline constexpr size_t kMaxYamlBytes = size_t{1} << 16;
inline constexpr int kMaxYamlDepth = 32;

// One document of YAML 1.1, with the scalars that PyYAML's safe_load knows ("yes" is true, "0o7" is
// text), except that dates are text. Keys are text. Aliases, merge keys and other tags are errors:
// what a few bytes could make large is not read. Errors are FILE:LINE:COL: text.
absl::StatusOr<Value> ParseYaml(absl::string_view text, absl::string_view name);

// JSON with the same limits.
absl::StatusOr<Value> ParseJson(absl::string_view text, absl::string_view name);

// As Python's str() has it: "True", "None", "1.0". Of a list or a map it is an error, "a list" or
// "a map".
absl::StatusOr<std::string> PythonText(const Value& value);

}  // namespace dtrain::faces
