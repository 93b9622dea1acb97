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
// For stdout. On a terminal all but ASCII is escaped: hosts and jobs of others may have any name.
std::string JsonText(const nlohmann::ordered_json& json, int indent = -1);
// A job that was to be ended is over: a word on stderr or, for programs, an object on stdout.
void PrintEnded(const std::string& job_id, bool json);

}  // namespace dtrain::status
