// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// Configuration files of launcher and agent: TOML 1.0, read by toml++. Pure.
namespace dtrain::config {

struct Entry {
  std::string section;  // "a.b" below [a.b]; empty: before any section
  std::string key;
  // Text as it is, without quotes; numbers, booleans and times as text. Several of a list.
  std::vector<std::string> values;
  size_t line = 0;  // from 1

  // "PATH:LINE", safe to print.
  std::string PlaceIn(absl::string_view path) const;
};

// In the order of the text. INVALID_ARGUMENT: "PATH:LINE: what is wrong there".
absl::StatusOr<std::vector<Entry>> ParseToml(absl::string_view path, absl::string_view text);

}  // namespace dtrain::config
