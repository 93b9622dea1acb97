// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "launcher/report/facts.h"

namespace dtrain::report {

// {"sha256": …, "files": …, "bytes": …, "git": …}, the last only of a git work tree.
inline nlohmann::ordered_json CodeJson(const CodeFacts& code) {
  nlohmann::ordered_json json = {
      {"sha256", code.sha256}, {"files", code.files}, {"bytes", code.bytes}};
  if (!code.git.empty()) json["git"] = code.git;
  return json;
}

}  // namespace dtrain::report
