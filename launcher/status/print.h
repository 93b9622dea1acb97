// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace dtrain::status {

// On stdout.
void Print(const std::string& text);
// Instead of the page before it, where a terminal shows it.
void PrintPageAnew(const std::string& page);
void PrintJson(const nlohmann::ordered_json& json);

}  // namespace dtrain::status
