// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

// What tables for people are made of. Pure. What is missing or of another type in an answer is
// shown as a dash: it may come from another version.
namespace dtrain::status {

using Row = std::vector<std::string>;

// The member, or null.
const nlohmann::ordered_json& At(const nlohmann::ordered_json& json, const char* key);
std::string Text(const nlohmann::ordered_json& json, size_t limit = 60);
double Number(const nlohmann::ordered_json& json);
// "12 s", "3 min 20 s", "2 h 5 min", "3 d 2 h".
std::string Age(double seconds);
// Columns as wide as their widest text, two spaces apart; none after the last.
std::string Align(const std::vector<Row>& rows);

}  // namespace dtrain::status
