// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace dtrain::status {

// On stdout.
void Print(const std::string& text);
void PrintJson(const nlohmann::ordered_json& json);

}  // namespace dtrain::status
